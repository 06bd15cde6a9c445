"""HTTP APIs that are closed by a file of secrets: nothing but /ping is answered without one."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.admin.web.pages import PAGES
from emberq.embedded import EmbeddedThread
from emberq.lookupd.api import routes as lookupd_routes
from emberq.nsqd.api.routes import routes as nsqd_routes
from tests.conftest import StartNsqd
from tests.support.admin_rig import AdminThread, basic, of_cluster, user_file
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import Authority
from tests.support.embedded import create
from tests.support.harness import NsqdHarness
from tests.support.http_client import Answer, HttpClient
from tests.support.lookupd_harness import LookupdHarness
from tests.support.raw_http_client import RawClient

SECRET = "correct-horse-battery-staple"
OLD_SECRET = "an-older-secret-of-theirs"
WRONG: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"Bearer {SECRET}x"},
    {"Authorization": f"Bearer {SECRET[:-1]}"},
    {"Authorization": f"Token {SECRET}"},
    {"Authorization": basic(SECRET, "")},
    {"Authorization": "Bearer # comment"},
    {"X-Authorization": f"Bearer {SECRET}"},
    {"Cookie": f"nsqadmin-session={SECRET}"},
    {"X-Forwarded-User": "admin"},
)
RIGHT = (
    {"Authorization": f"Bearer {SECRET}"},
    {"Authorization": f"bearer {OLD_SECRET}"},
    {"Authorization": basic("anyone", SECRET)},
)
CHALLENGE = 'Bearer realm="{0}", Basic realm="{0}"'


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets"
    path.write_text(f"# comment\n{SECRET}\n\n{OLD_SECRET}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def closed_nsqd(start_nsqd: StartNsqd, secret_file: Path) -> NsqdHarness:
    return start_nsqd(http_secret_file=str(secret_file))


@pytest.fixture
def closed_lookupd(secret_file: Path) -> Iterator[LookupdHarness]:
    with LookupdHarness(http_secret_file=str(secret_file)) as running:
        yield running


@pytest.fixture
def cluster() -> Iterator[EmbeddedThread]:
    with EmbeddedThread() as nsq:
        create(nsq, "orders", "billing")
        yield nsq


def filled_in(path: str) -> str:
    """A path of a route as a client asks for it; what takes time takes little."""
    for name, value in (("{option}", "log_level"), ("{asset}", "app.js"), ("{digest}", "0")):
        path = path.replace(name, value)
    return f"{path}?topic=orders&channel=billing&seconds=0.01"


def expect_closed(http: HttpClient, targets: list[tuple[str, str]], *, realm: str) -> None:
    """None of these is answered without a secret, and none is refused with one."""
    for method, target in targets:
        for headers in WRONG:
            answer = http.request(method, target, b"x", headers=headers)
            assert answer.error == (401, "UNAUTHORIZED"), (method, target, headers)
            assert answer.headers["www-authenticate"] == CHALLENGE.format(realm)
    for method, target in targets:
        for headers in RIGHT:
            assert http.request(method, target, b"x", headers=headers).status not in (401, 403), (method, target)


# nsqd


def test_a_scan_of_nsqd_finds_nothing_but_ping(closed_nsqd: NsqdHarness) -> None:
    http = HttpClient(closed_nsqd.http_address)
    found = [(route.method, filled_in(route.path)) for route in nsqd_routes(closed_nsqd.nsqd) if route.path != "/ping"]
    assert len(found) > 30
    unknown = [("GET", "/metrics"), ("GET", "/nothing"), ("OPTIONS", "*"), ("HEAD", "/stats"), ("GET", "//stats")]
    expect_closed(http, [*found, *unknown[:2]], realm="nsqd")
    for method, target in unknown:
        assert http.request(method, target).status == 401
    assert http.get("/ping").text == "OK"


def test_what_is_refused_does_nothing_and_its_body_is_not_awaited(closed_nsqd: NsqdHarness) -> None:
    client = RawClient(closed_nsqd.http_address)
    client.send(b"POST /mpub?topic=t HTTP/1.1\r\nHost: q\r\nContent-Length: 5000000\r\n\r\n")
    assert client.read_answer().error == (401, "UNAUTHORIZED")
    client.close()
    assert HttpClient(closed_nsqd.http_address).post("/pub?topic=t", b"x").status == 401
    assert not closed_nsqd.has_topic("t")


def test_a_head_that_was_let_in_opens_nothing_for_others(closed_nsqd: NsqdHarness) -> None:
    """Heads of publishers are remembered, but not their secrets."""
    client = RawClient(closed_nsqd.http_address)
    for _ in range(3):
        assert client.ask("POST", "/pub?topic=t", b"x", authorization=f"Bearer {SECRET}").status == 200
        assert client.ask("POST", "/pub?topic=t", b"x").status == 401
    client.close()
    assert closed_nsqd.topic("t").message_count == 3


def test_a_secret_that_is_taken_out_opens_nothing_after_a_reload(closed_nsqd: NsqdHarness, secret_file: Path) -> None:
    client = RawClient(closed_nsqd.http_address)
    assert client.ask("GET", "/stats", authorization=f"Bearer {OLD_SECRET}").status == 200
    secret_file.write_text(f"{SECRET}\na-secret-that-is-new\n")
    closed_nsqd.call(closed_nsqd.nsqd.reload)
    assert client.ask("GET", "/stats", authorization=f"Bearer {OLD_SECRET}").status == 401
    for secret in (SECRET, "a-secret-that-is-new"):
        assert client.ask("GET", "/stats", authorization=f"Bearer {secret}").status == 200
    client.close()


def test_a_page_of_another_site_cannot_use_the_secret_that_a_browser_remembers(closed_nsqd: NsqdHarness) -> None:
    http = HttpClient(closed_nsqd.http_address)
    for headers in RIGHT:
        forged = {**headers, "Origin": "http://evil.example", "Accept-Language": "en"}
        assert http.request("POST", "/topic/create?topic=t", headers=forged).error == (403, "FORBIDDEN")
    assert not closed_nsqd.has_topic("t")


def test_a_secret_opens_the_profiler_to_other_machines(
    closed_nsqd: NsqdHarness, closed_lookupd: LookupdHarness
) -> None:
    elsewhere = {"X-Forwarded-For": "203.0.113.7"}
    for http in (HttpClient(closed_nsqd.http_address), closed_lookupd.http):
        assert http.request("GET", "/debug/pprof/", headers=elsewhere).status == 401
        assert http.request("GET", "/debug/pprof/", headers={**elsewhere, **RIGHT[0]}).status == 200


def test_https_is_closed_as_well(start_nsqd: StartNsqd, secret_file: Path, authority: Authority) -> None:
    nsqd = start_nsqd(http_secret_file=str(secret_file), **authority.issue("server").options())
    address = nsqd.nsqd.https_address
    assert address is not None
    client = RawClient(address, tls=ssl.create_default_context(cafile=str(authority.path)))
    for shown, status in (("", 401), (f"Bearer {SECRET}", 200)):
        assert client.ask("GET", "/info", authorization=shown).status == status
    assert client.ask("GET", "/ping").status == 200
    client.close()


# nsqd, with authorization servers


def test_operators_and_the_clients_of_authorization_servers_each_have_their_way_in(
    start_nsqd: StartNsqd, secret_file: Path
) -> None:
    with AuthServer(grant(entry(topic="orders", permissions=("publish",)))) as server:
        nsqd = start_nsqd(http_secret_file=str(secret_file), auth_http_address=(server.address,), auth_http_api=True)
        http = HttpClient(nsqd.http_address)

        def status(method: str, target: str, secret: str) -> int:
            headers = {"Authorization": f"Bearer {secret}"} if secret else {}
            return http.request(method, target, b"x", headers=headers).status

        for target in ("/pub?topic=orders", "/pub?topic=other", "/topic/create?topic=other"):
            assert status("POST", target, SECRET) == 200
        assert [status("GET", target, SECRET) for target in ("/stats", "/debug/pprof/")] == [200, 200]
        assert server.questions == []

        assert status("POST", "/pub?topic=orders", "token") == 200
        assert status("POST", "/pub?topic=other", "token") == 403
        assert status("PUT", "/config/log_level", "token") == 403
        assert status("GET", "/debug/pprof/", "token") == 403
        for target in ("/info", "/stats", "/metrics"):
            assert status("GET", target, "token") == 401
        for method, target in (("POST", "/pub?topic=orders"), ("GET", "/info"), ("GET", "/config/log_level")):
            assert status(method, target, "") == 401
        assert status("GET", "/ping", "") == 200
        assert {question.params["secret"][0] for question in server.questions} == {"token"}


# nsqlookupd


def test_a_scan_of_nsqlookupd_finds_nothing_but_ping(closed_lookupd: LookupdHarness) -> None:
    table = lookupd_routes(closed_lookupd.daemon.registry, clock=closed_lookupd.clock)
    found = [(route.method, filled_in(route.path)) for route in table if route.path != "/ping"]
    assert len(found) > 15
    closed_lookupd.nsqd("orders")
    for method, target in found:
        assert closed_lookupd.http.request(method, target).status == 401
    assert closed_lookupd.http.request("GET", "/topics", headers=RIGHT[0]).json() == {"topics": ["orders"]}
    reading = [each for each in found if each[0] == "GET" and not each[1].startswith("/lookup")]
    expect_closed(closed_lookupd.http, [*reading, ("GET", "/metrics"), ("GET", "/nothing")], realm="nsqlookupd")
    assert closed_lookupd.get("/ping").text == "OK"


def test_nsqlookupd_reads_its_secrets_again(closed_lookupd: LookupdHarness, secret_file: Path) -> None:
    secret_file.write_text("a-secret-that-is-new\n")
    closed_lookupd.call(closed_lookupd.daemon.reload)
    assert closed_lookupd.http.request("GET", "/topics", headers=RIGHT[0]).status == 401
    new = {"Authorization": "Bearer a-secret-that-is-new"}
    assert closed_lookupd.http.request("GET", "/topics", headers=new).status == 200


# nsqadmin


ADMIN_TARGETS = [
    *(("GET", path.replace("{topic}", "orders").replace("{channel}", "billing")) for path in PAGES),
    ("GET", "/static/app.js"),
    ("GET", "/api/topics"),
    ("GET", "/api/nodes"),
    ("GET", "/api/view?view=topics"),
    ("GET", "/api/live?view=topics"),
    ("GET", "/api/peek/orders/billing"),
    ("GET", "/config/log_level"),
    ("POST", "/api/topics"),
    ("DELETE", "/api/topics/orders"),
    ("PUT", "/config/log_level"),
    ("POST", "/login"),
    ("POST", "/logout"),
    ("GET", "/nothing"),
]


@pytest.mark.parametrize("base_path", ["/", "/admin"])
def test_a_scan_of_nsqadmin_finds_nothing_but_ping(cluster: EmbeddedThread, secret_file: Path, base_path: str) -> None:
    prefix = base_path.rstrip("/")
    with of_cluster(cluster, http_secret_file=str(secret_file), base_path=base_path) as admin:
        http = HttpClient(admin.address)
        for method, target in ADMIN_TARGETS:
            for headers in WRONG:
                answer = http.request(method, f"{prefix}{target}", b"{}", headers=headers)
                assert answer.error == (401, "UNAUTHORIZED"), (method, target, headers)
                assert answer.headers["www-authenticate"] == CHALLENGE.format("nsqadmin")
        assert http.get(f"{prefix}/ping").text == "OK"
        for headers in RIGHT:
            for target in ("/", "/static/app.js", "/config/log_level"):
                assert http.request("GET", f"{prefix}{target}", headers=headers).status in (200, 404)
            assert http.request("GET", f"{prefix}/api/topics", headers=headers).json()["topics"] == ["orders"]
        with admin.events("view=topics") as events:
            assert events.head.startswith("HTTP/1.1 401 ")


def test_a_secret_does_not_make_an_admin_of_a_user_that_the_header_names(
    cluster: EmbeddedThread, secret_file: Path
) -> None:
    """A proxy may show the secret for all of its users."""
    with of_cluster(cluster, http_secret_file=str(secret_file), admin_user=("ada",)) as admin:

        def pause(**headers: str) -> int:
            return admin.post("/api/topics/orders", {"action": "pause"}, **headers).status

        shown = f"Bearer {SECRET}"
        assert pause(X_Forwarded_User="ada") == 401
        assert pause(X_Forwarded_User="eve", Authorization=shown) == 403
        assert pause(X_Forwarded_User="ada", Authorization=shown) == 200


@pytest.fixture
def with_users(cluster: EmbeddedThread, secret_file: Path, tmp_path: Path) -> Iterator[AdminThread]:
    users = user_file(tmp_path, {"ada": ("admin", "lovelace"), "tom": ("viewer", "sawyer")})
    with of_cluster(cluster, http_secret_file=str(secret_file), user_file=str(users)) as admin:
        yield admin


def logged_in(admin: AdminThread, name: str, password: str) -> str:
    answer = admin.post("/login", {"user": name, "password": password})
    assert answer.status == 200
    return answer.headers["set-cookie"].partition(";")[0]


def test_where_users_log_in_they_need_no_secret(with_users: AdminThread) -> None:
    cookie = logged_in(with_users, "tom", "sawyer")
    assert with_users.get("/api/topics", Cookie=cookie).json()["topics"] == ["orders"]
    assert with_users.get("/", Cookie=cookie).status == 200
    assert with_users.get("/api/topics", Authorization=basic("tom", "sawyer")).status == 200
    assert with_users.get("/").headers["location"].startswith("/login")


def test_where_users_log_in_a_secret_is_another_way_in(with_users: AdminThread) -> None:
    for headers in RIGHT:
        shown = headers["Authorization"]
        assert with_users.get("/api/topics", Authorization=shown).status == 200
        assert with_users.post("/api/topics/orders", {"action": "pause"}, Authorization=shown).status == 200
        assert with_users.get("/config/log_level", Authorization=shown).status == 200


def test_where_users_log_in_a_wrong_secret_opens_nothing(with_users: AdminThread) -> None:
    for headers in WRONG:
        answer: Answer = HttpClient(with_users.address).request("GET", "/api/topics", headers=headers)
        assert answer.status == 401
        assert HttpClient(with_users.address).request("DELETE", "/api/topics/orders", headers=headers).status == 401


def test_a_secret_is_not_taken_for_a_guessed_password(with_users: AdminThread) -> None:
    for _ in range(60):
        assert with_users.get("/api/topics", Authorization=basic("ada", SECRET)).status == 200
    assert logged_in(with_users, "ada", "lovelace")


def test_nsqadmin_reads_its_secrets_again(with_users: AdminThread, secret_file: Path) -> None:
    secret_file.write_text("a-secret-that-is-new\n")
    with_users.call(with_users.daemon.reload)
    assert with_users.get("/api/topics", Authorization=f"Bearer {SECRET}").status == 401
    assert with_users.get("/api/topics", Authorization="Bearer a-secret-that-is-new").status == 200
