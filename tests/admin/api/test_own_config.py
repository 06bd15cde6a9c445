"""GET and PUT /config."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, basic, user_file

pytestmark = pytest.mark.usefixtures("process_as_before")


@pytest.mark.conformance(248)
def test_the_nsqlookupds_can_be_read_and_changed(admin: AdminThread) -> None:
    (before,) = admin.get("/config/nsqlookupd_http_addresses").json()
    assert before.startswith("127.0.0.1:")
    answer = admin.put("/config/nsqlookupd_http_addresses", ["127.0.0.1:1"])
    assert (answer.status, answer.json()) == (200, ["127.0.0.1:1"])
    assert admin.get("/api/topics").status == 502
    assert admin.put("/config/nsqlookupd_http_addresses", [before]).status == 200
    assert admin.get("/api/topics").status == 200


@pytest.mark.conformance(248)
def test_the_log_level_can_be_changed(admin: AdminThread) -> None:
    answer = admin.put("/config/log_level", b"fatal")
    assert (answer.status, answer.text) == (200, "5")
    assert admin.get("/config/log_level").text == "5"
    assert admin.put("/config/log_level", b"bad").error == (400, "INVALID_VALUE")


@pytest.mark.parametrize("value", [b"x", b"{}", b"[1]", b'["no port"]', b'[":4161"]', b"[[]]"])
def test_what_are_no_addresses_is_refused(admin: AdminThread, value: bytes) -> None:
    assert admin.put("/config/nsqlookupd_http_addresses", value).error == (400, "INVALID_VALUE")


def test_a_value_must_be_there_and_not_too_long(admin: AdminThread) -> None:
    assert admin.put("/config/log_level", b"").error == (413, "INVALID_VALUE")
    assert admin.put("/config/log_level", bytes(1024 * 1024 + 1)).error == (413, "INVALID_VALUE")


def test_other_options_can_be_read_but_not_changed(admin: AdminThread) -> None:
    assert admin.get("/config/statsd_interval").text == "60000000000"
    assert admin.get("/config/base_path").text == "/"
    assert admin.get("/config/proxy_graphite").json() is False
    assert admin.get("/config/admin_users").json() == []
    assert admin.get("/config/nope").error == (400, "INVALID_OPTION")
    assert admin.put("/config/base_path", b"/x").error == (400, "INVALID_OPTION")


def test_passwords_in_urls_are_not_shown(start_admin: StartAdmin) -> None:
    admin = start_admin(graphite_url="http://me:secret@graphite/", notification_http_endpoint="http://n/?token=secret")
    assert admin.get("/config/graphite_url").text == "http://***@graphite/"
    assert admin.get("/config/notification_http_endpoint").text == "http://n/?token=***"


@pytest.mark.conformance(249)
def test_only_a_range_of_addresses_may_ask(start_admin: StartAdmin) -> None:
    admin = start_admin(allow_config_from_cidr="10.0.0.0/8")
    assert admin.get("/config/log_level").error == (403, "FORBIDDEN")
    assert admin.put("/config/log_level", b"fatal").error == (403, "FORBIDDEN")
    assert start_admin(allow_config_from_cidr="").get("/config/log_level").status == 200


def test_a_page_of_another_site_cannot_change_it(admin: AdminThread) -> None:
    assert admin.put("/config/log_level", b"fatal", Origin="http://evil").error == (403, "FORBIDDEN")


def test_where_everybody_logs_in_only_an_admin_may_ask(start_admin: StartAdmin, tmp_path: Path) -> None:
    users = user_file(tmp_path, {"ada": ("admin", "a"), "tom": ("operator", "t")})
    admin = start_admin(user_file=str(users))
    assert admin.get("/config/log_level").error == (403, "FORBIDDEN")
    assert admin.get("/config/log_level", Authorization=basic("tom", "t")).error == (403, "FORBIDDEN")
    assert admin.get("/config/log_level", Authorization=basic("ada", "a")).status == 200
