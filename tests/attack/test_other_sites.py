"""Pages of other sites in a user's browser: forms that post to the daemons, and names that are led to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from emberq.embedded import EmbeddedThread
from tests.conftest import StartNsqd
from tests.support.admin_rig import AdminThread, basic, of_cluster, user_file
from tests.support.embedded import create
from tests.support.harness import NsqdHarness
from tests.support.http_client import Answer, HttpClient
from tests.support.lookupd_harness import LookupdHarness
from tests.support.raw_http_client import RawClient

EVIL = "evil.example"
FORM = {"Origin": f"http://{EVIL}", "Accept-Language": "en", "Content-Type": "text/plain"}
"""What a browser sends along with a form of another site, to a machine that it does not trust more than others."""
LOCAL_FORM = {**FORM, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
"""The same to localhost."""
PICTURE = {
    "Accept-Language": "en",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "no-cors",
    "Sec-Fetch-Dest": "image",
}
LINK = {
    "Accept-Language": "en",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}
"""A user follows a link to us."""
REBOUND_READ = {"Host": f"{EVIL}:4171", "Accept-Language": "en"}
"""A page whose name leads to us reads from its own site: the browser has nothing to say about that."""
REBOUND_CHANGE = {**REBOUND_READ, "Origin": f"http://{EVIL}:4171"}
NODE_FETCH = {"Host": "q1.corp.example", "Accept-Language": "*", "Sec-Fetch-Mode": "cors", "User-Agent": "node"}
ANY_NAME = {"Host": "q1.corp.example", "User-Agent": "curl/8"}


def refused(answer: Answer) -> str:
    """Why the answer is a refusal, which it must be."""
    assert answer.status == 403, answer
    message: str = answer.json()["message"]
    return message


# nsqd


@pytest.mark.parametrize("headers", [FORM, LOCAL_FORM, {**FORM, "Origin": "null"}, {"Sec-Fetch-Site": "same-site"}])
def test_a_form_of_another_site_does_nothing_to_nsqd(
    nsqd: NsqdHarness, http: HttpClient, headers: dict[str, str]
) -> None:
    nsqd.create_topic("orders")
    for target in ("/pub?topic=orders", "/mpub?topic=orders", "/topic/delete?topic=orders", "/topic/create?topic=new"):
        assert refused(http.request("POST", target, b"forged", headers=headers)) == "FORBIDDEN"
    assert refused(http.request("PUT", "/config/log_level", b"fatal", headers=headers)) == "FORBIDDEN"
    assert nsqd.topic("orders").message_count == 0
    assert not nsqd.has_topic("new")


def test_a_picture_of_another_site_costs_nsqd_nothing(http: HttpClient) -> None:
    for target in ("/stats", "/debug/pprof/heap?seconds=60", "/nothing"):
        assert refused(http.request("GET", target, headers=PICTURE)) == "FORBIDDEN"


@pytest.mark.parametrize("headers", [REBOUND_READ, REBOUND_CHANGE])
def test_a_name_that_is_led_to_nsqd_reads_and_changes_nothing(
    nsqd: NsqdHarness, http: HttpClient, headers: dict[str, str]
) -> None:
    nsqd.create_channel("orders", "billing")
    for target in ("/stats?format=json", "/channel/peek?topic=orders&channel=billing", "/info"):
        assert refused(http.request("GET", target, headers=headers)) == "UNKNOWN_HOST"
    forged = {**headers, "X-Forwarded-Host": "localhost"}
    assert refused(http.request("POST", "/topic/delete?topic=orders", headers=forged)) == "UNKNOWN_HOST"
    assert nsqd.has_topic("orders")


def test_a_head_that_was_refused_is_refused_again(nsqd: NsqdHarness) -> None:
    """Heads of publishers are remembered; one that a browser was made to send must not be let in by that."""
    client = RawClient(nsqd.http_address)
    for _ in range(3):
        assert client.ask("POST", "/pub?topic=t", b"honest").status == 200
        assert client.ask("POST", "/pub?topic=t", b"forged", origin=f"http://{EVIL}").error == (403, "FORBIDDEN")
    assert nsqd.topic("t").message_count == 3
    client.close()


@pytest.mark.parametrize("headers", [NODE_FETCH, ANY_NAME, {"Host": "", "User-Agent": "x"}, {"Host": "[::1]:4151"}])
def test_programs_may_call_nsqd_by_any_name(nsqd: NsqdHarness, http: HttpClient, headers: dict[str, str]) -> None:
    assert http.request("POST", "/pub?topic=t", b"x", headers=headers).text == "OK"
    assert http.request("GET", "/stats", headers=headers).status == 200
    assert nsqd.topic("t").message_count == 1


@pytest.mark.parametrize("host", ["localhost:4151", "127.0.0.1:4151", "[::1]:4151", "LOCALHOST.", "a.localhost", "q1"])
def test_users_may_look_at_nsqd_in_their_browser(start_nsqd: StartNsqd, host: str) -> None:
    http = HttpClient(start_nsqd(broadcast_address="q1").http_address)
    assert http.request("GET", "/stats", headers={"Host": host, "Accept-Language": "en"}).status == 200
    assert http.request("GET", "/stats", headers={**LINK, "Host": host}).status == 200
    own = {"Host": host, "Origin": f"http://{host}", "Accept-Language": "en", "Sec-Fetch-Site": "same-origin"}
    assert http.request("POST", "/pub?topic=t", b"x", headers=own).status == 200


def test_an_operator_adds_names_of_nsqd(start_nsqd: StartNsqd) -> None:
    http = HttpClient(start_nsqd(http_allowed_host=("q1.corp.example:4151", ".Cluster.example.")).http_address)
    for host, status in (
        ("q1.corp.example:4151", 200),
        ("x.cluster.example", 200),
        ("cluster.example", 200),
        ("q2.corp.example", 403),
        ("xcluster.example", 403),
        ("q1.corp.example.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ):
        assert http.request("GET", "/info", headers={"Host": host, "Accept-Language": "en"}).status == status, host


# nsqlookupd


def test_other_sites_do_nothing_to_nsqlookupd(lookupd: LookupdHarness) -> None:
    lookupd.nsqd("orders")
    for headers, why in ((FORM, "FORBIDDEN"), (LOCAL_FORM, "FORBIDDEN"), (REBOUND_CHANGE, "UNKNOWN_HOST")):
        for target in ("/topic/delete?topic=*", "/topic/create?topic=new", "/topic/tombstone?topic=orders&node=n"):
            assert refused(lookupd.http.request("POST", target, headers=headers)) == why
    assert refused(lookupd.http.request("GET", "/nodes", headers=REBOUND_READ)) == "UNKNOWN_HOST"
    assert lookupd.topics() == ["orders"]
    for headers in (NODE_FETCH, ANY_NAME):
        assert lookupd.http.request("GET", "/lookup?topic=orders", headers=headers).status == 200
        assert lookupd.http.request("POST", "/topic/create?topic=t", headers=headers).status == 200


# nsqadmin


@pytest.fixture
def cluster() -> Iterator[EmbeddedThread]:
    with EmbeddedThread() as nsq:
        create(nsq, "orders", "billing")
        yield nsq


def asked(admin: AdminThread, method: str, target: str, headers: dict[str, str], body: Any = None) -> Answer:
    return admin.request(method, target, body, **{name.replace("-", "_"): value for name, value in headers.items()})


def test_a_name_that_is_led_to_an_open_nsqadmin_reads_and_changes_nothing(cluster: EmbeddedThread) -> None:
    with of_cluster(cluster) as admin:
        for target in ("/", "/api/topics", "/api/peek/orders/billing", "/api/live?view=topics", "/config/log_level"):
            assert refused(asked(admin, "GET", target, REBOUND_READ)) == "UNKNOWN_HOST"
        for method, target, body in (
            ("DELETE", "/api/topics/orders", None),
            ("POST", "/api/topics", {"topic": "new"}),
            ("PUT", "/config/nsqlookupd_http_addresses", ["evil.example:1"]),
        ):
            forged = {**REBOUND_CHANGE, "X-Forwarded-Host": "localhost"}
            assert refused(asked(admin, method, target, forged, body)) == "UNKNOWN_HOST"
        assert admin.get("/api/topics").json()["topics"] == ["orders"]


def test_other_sites_get_nothing_of_nsqadmin(cluster: EmbeddedThread) -> None:
    with of_cluster(cluster) as admin:
        for target in ("/api/topics", "/api/live?view=topics", "/api/peek/orders/billing", "/topics"):
            assert refused(asked(admin, "GET", target, PICTURE)) == "FORBIDDEN"
        assert refused(asked(admin, "DELETE", "/api/topics/orders", FORM)) == "FORBIDDEN"
        assert asked(admin, "GET", "/topics/orders", LINK).status == 200


def test_programs_may_call_nsqadmin_by_any_name(cluster: EmbeddedThread) -> None:
    with of_cluster(cluster) as admin:
        for headers in (NODE_FETCH, ANY_NAME):
            assert asked(admin, "GET", "/api/topics", headers).json()["topics"] == ["orders"]
            assert asked(admin, "POST", "/api/topics/orders", headers, {"action": "pause"}).status == 200


def test_an_operator_adds_names_of_nsqadmin(cluster: EmbeddedThread) -> None:
    browser = {"Host": "admin.corp.example", "Origin": "http://admin.corp.example", "Accept-Language": "en"}
    with of_cluster(cluster, http_allowed_host=("admin.corp.example",)) as admin:
        assert asked(admin, "POST", "/api/topics/orders", browser, {"action": "pause"}).status == 200
        assert refused(asked(admin, "GET", "/", {**browser, "Host": "other.corp.example"})) == "UNKNOWN_HOST"


def test_where_users_log_in_nsqadmin_has_any_name(cluster: EmbeddedThread, tmp_path: Any) -> None:
    users = user_file(tmp_path, {"ada": ("admin", "lovelace")})
    browser = {"Host": "admin.corp.example", "Origin": "https://admin.corp.example", "Accept-Language": "en"}
    with of_cluster(cluster, user_file=str(users)) as admin:
        assert asked(admin, "GET", "/api/topics", browser).error == (401, "LOGIN_REQUIRED")
        logged_in = {**browser, "Authorization": basic("ada", "lovelace")}
        assert asked(admin, "POST", "/api/topics/orders", logged_in, {"action": "pause"}).status == 200


def test_a_name_that_is_led_to_a_trusted_proxys_machine_is_refused(cluster: EmbeddedThread) -> None:
    """A page there could say that it is any user."""
    options = {"trusted_proxy_cidr": ("127.0.0.0/8",), "http_allowed_host": ("admin.corp.example",)}
    with of_cluster(cluster, **options) as admin:
        forged = {**REBOUND_CHANGE, "X-Forwarded-User": "ada", "X-Forwarded-Host": "admin.corp.example"}
        assert refused(asked(admin, "DELETE", "/api/topics/orders", forged)) == "UNKNOWN_HOST"
        honest = {"Host": "admin.corp.example", "Accept-Language": "en", "X-Forwarded-User": "ada"}
        assert asked(admin, "GET", "/api/topics", honest).status == 200
