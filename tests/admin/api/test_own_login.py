"""Logging in and out, and what each role may do then: through real sockets, with a real file of users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from emberq.base.clock import ManualClock
from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, basic, of_cluster, user_file
from tests.support.embedded import create
from tests.support.http_client import Answer

USERS = {"ada": ("admin", "lovelace"), "olga": ("operator", "o"), "tom": ("viewer", "t")}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return user_file(tmp_path, USERS)


@pytest.fixture
def guarded(cluster: EmbeddedThread, users: Path, tmp_path: Path) -> Iterator[AdminThread]:
    """Everybody has to log in."""
    with of_cluster(cluster, user_file=str(users), audit_log_file=str(tmp_path / "audit")) as admin:
        yield admin


def log_in(admin: AdminThread, name: str, password: str, **headers: str) -> Answer:
    return admin.post("/login", {"user": name, "password": password}, **headers)


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def session_of(admin: AdminThread, name: str) -> dict[str, str]:
    """The headers that a browser of this user sends with an action."""
    answer = log_in(admin, name, USERS[name][1])
    assert answer.status == 200, answer
    cookie = cookie_of(answer)
    page = admin.get("/topics", Cookie=cookie).text
    config = json.loads(page.partition('data-config="')[2].partition('"')[0].replace("&quot;", '"'))
    assert config["user"] == name
    return {"Cookie": cookie, "X_CSRF_Token": config["csrf_token"]}


def audit(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]


def test_whoever_is_not_logged_in_sees_nothing(guarded: AdminThread) -> None:
    for path in ("/api/topics", "/api/live?view=topics", "/api/view?view=topics", "/api/history", "/api/pipelines"):
        assert guarded.get(path).error == (401, "LOGIN_REQUIRED")
    assert guarded.delete("/api/topics/t").error == (401, "LOGIN_REQUIRED")
    for path in ("/ping", "/login"):
        assert guarded.get(path).status == 200


def test_pages_send_whoever_is_not_logged_in_to_the_login_page(guarded: AdminThread) -> None:
    answer = guarded.get("/topics/t?x=//evil")
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2Ftopics%2Ft%3Fx%3D%2F%2Fevil")


def test_a_session_lets_in_until_it_is_ended(guarded: AdminThread) -> None:
    answer = log_in(guarded, "ada", "lovelace")
    assert (answer.status, answer.json()) == (200, {"message": ""})
    attributes = answer.headers["set-cookie"].split("; ")[1:]
    assert attributes == ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]
    browser = session_of(guarded, "ada")
    assert guarded.get("/api/topics", Cookie=browser["Cookie"]).status == 200
    left = guarded.post("/logout", **browser)
    assert (left.status, left.headers["set-cookie"].split(";")[0]) == (200, "nsqadmin-session=")
    assert guarded.get("/api/topics", Cookie=browser["Cookie"]).error == (401, "LOGIN_REQUIRED")


def test_a_browser_that_speaks_tls_keeps_the_cookie_for_it(guarded: AdminThread) -> None:
    answer = log_in(guarded, "ada", "lovelace", X_Forwarded_Proto="https")
    assert answer.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(("name", "password"), [("ada", "wrong"), ("ada", ""), ("nobody", "x"), ("", "")])
def test_a_wrong_name_or_password_is_refused(guarded: AdminThread, name: str, password: str) -> None:
    answer = log_in(guarded, name, password)
    assert answer.error == (401, "LOGIN_FAILED")
    assert "set-cookie" not in answer.headers


def test_whoever_guesses_has_to_wait(cluster: EmbeddedThread, users: Path) -> None:
    clock = ManualClock()
    with of_cluster(cluster, user_file=str(users), clock=clock) as admin:
        for _ in range(5):
            assert log_in(admin, "ada", "wrong").status == 401
        assert log_in(admin, "ada", "lovelace").error == (429, "TOO_MANY_TRIES")
        assert admin.get("/api/topics", Authorization=basic("ada", "lovelace")).error == (429, "TOO_MANY_TRIES")
        clock.advance(seconds=61)
        assert log_in(admin, "ada", "lovelace").status == 200


FORM = {"Content_Type": "application/x-www-form-urlencoded"}


def test_a_form_sends_the_browser_on(guarded: AdminThread) -> None:
    answer = guarded.post("/login", b"user=ada&password=lovelace&next=%2Ftopics%2Ft", **FORM)
    assert (answer.status, answer.headers["location"]) == (303, "/topics/t")
    assert guarded.get("/api/topics", Cookie=cookie_of(answer)).status == 200


def test_the_login_page_has_a_form_that_needs_no_script(guarded: AdminThread) -> None:
    asked = guarded.get("/topics/t")
    page = guarded.get(asked.headers["location"]).text
    assert '<form id="login" class="login" method="post" action="/login">' in page
    assert '<input type="hidden" name="next" value="/topics/t">' in page
    assert 'name="user" type="text"' in page
    assert 'name="password" type="password"' in page
    assert "JavaScript" not in page


def test_a_form_that_is_refused_comes_back_with_the_reason(guarded: AdminThread, tmp_path: Path) -> None:
    body = b"user=ada&password=no&next=%2Ftopics%2Ft"
    answer = guarded.post("/login", body, **FORM)
    assert (answer.status, answer.headers["location"]) == (303, "/login?failed=true&next=%2Ftopics%2Ft")
    assert "set-cookie" not in answer.headers
    page = guarded.get(answer.headers["location"]).text
    assert "Name or password is wrong." in page
    assert 'name="next" value="/topics/t"' in page
    assert audit(tmp_path)[-1]["outcome"] == "refused"
    for _ in range(5):
        answer = guarded.post("/login", body, **FORM)
    assert "Too many wrong passwords" in guarded.get(answer.headers["location"]).text


@pytest.mark.parametrize("path", ["http://evil", "//evil", "/\\evil", "evil", "/a\r\nSet-Cookie: x=y", "/\u00e4"])
def test_a_form_sends_the_browser_nowhere_else(guarded: AdminThread, path: str) -> None:
    body = f"user=ada&password=lovelace&next={quote(path, safe='')}".encode()
    answer = guarded.post("/login", body, **FORM)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert "x=y" not in answer.headers["set-cookie"]


def test_another_site_cannot_log_its_visitor_in(guarded: AdminThread) -> None:
    assert log_in(guarded, "ada", "lovelace", Origin="http://evil").error == (403, "FORBIDDEN")


def test_a_session_acts_only_with_its_token(guarded: AdminThread) -> None:
    browser, other = session_of(guarded, "ada"), session_of(guarded, "olga")
    create_it = {"topic": "t"}
    assert guarded.post("/api/topics", create_it, Cookie=browser["Cookie"]).error == (403, "FORBIDDEN")
    forged = {"Cookie": browser["Cookie"], "X_CSRF_Token": other["X_CSRF_Token"]}
    assert guarded.post("/api/topics", create_it, **forged).error == (403, "FORBIDDEN")
    assert guarded.post("/api/topics", create_it, **browser, Origin="http://evil").error == (403, "FORBIDDEN")
    assert guarded.post("/logout", Cookie=browser["Cookie"]).error == (403, "FORBIDDEN")
    assert guarded.post("/api/topics", create_it, **browser).status == 200


def test_each_role_may_do_what_it_may(guarded: AdminThread, cluster: EmbeddedThread, tmp_path: Path) -> None:
    create(cluster, "t", "ch")
    for_operators = [
        ("GET", "/api/peek/t/ch", None),
        ("GET", "/api/pipelines/samples?pipeline=p&query=q", None),
        ("POST", "/api/topics", {"topic": "new"}),
        ("POST", "/api/publish/t", {"body": "x"}),
        ("POST", "/api/topics/t", {"action": "pause"}),
        ("POST", "/api/topics/t/ch", {"action": "unpause"}),
    ]
    for_admins = [
        ("POST", "/api/topics/t", {"action": "empty"}),
        ("POST", "/api/topics/t/ch", {"action": "empty"}),
        ("DELETE", "/api/nodes/n:1", {"topic": "nope"}),
        ("DELETE", "/api/topics/t/ch", None),
        ("DELETE", "/api/topics/t", None),
    ]
    viewer, operator, admin = (session_of(guarded, name) for name in ("tom", "olga", "ada"))
    for method, path, body in for_operators + for_admins:
        assert guarded.request(method, path, body, **viewer).error == (403, "FORBIDDEN")
    for method, path, body in for_operators:
        assert guarded.request(method, path, body, **operator).status == 200
    for method, path, body in for_admins:
        assert guarded.request(method, path, body, **operator).error == (403, "FORBIDDEN")
    for method, path, body in for_admins:
        assert guarded.request(method, path, body, **admin).status in (200, 404)
    lines = audit(tmp_path)
    assert {line["role"] for line in lines if line["outcome"] == "refused"} == {"viewer", "operator"}
    done = [(line["user"], line["action"]) for line in lines if line["outcome"] == "done"]
    assert ("olga", "pause_topic") in done
    assert done[-1] == ("ada", "delete_topic")


def test_programs_show_their_password_with_each_request(guarded: AdminThread) -> None:
    assert guarded.get("/api/topics", Authorization=basic("tom", "t")).status == 200
    assert guarded.get("/api/topics", Authorization=basic("tom", "t")).status == 200
    assert guarded.get("/api/topics", Authorization=basic("tom", "x")).error == (401, "LOGIN_FAILED")
    assert guarded.get("/topics", Authorization=basic("tom", "t")).status == 200
    assert guarded.post("/api/topics", {"topic": "t"}, Authorization=basic("olga", "o")).status == 200
    for nonsense in ("Basic", "Basic %", "Bearer t", "Basic " + "dG9t"):
        assert guarded.get("/api/topics", Authorization=nonsense).error == (401, "LOGIN_REQUIRED")


def test_another_site_cannot_use_a_password_that_the_browser_knows(guarded: AdminThread) -> None:
    headers = {"Authorization": basic("ada", "lovelace"), "Origin": "http://evil"}
    assert guarded.post("/api/topics", {"topic": "t"}, **headers).error == (403, "FORBIDDEN")


def test_a_new_file_of_users_logs_out_who_is_gone(guarded: AdminThread, tmp_path: Path) -> None:
    ada, tom = session_of(guarded, "ada"), session_of(guarded, "tom")
    user_file(tmp_path, {"tom": ("operator", "t")})
    guarded.call(guarded.daemon.reload)
    assert guarded.get("/api/topics", Cookie=ada["Cookie"]).status == 401
    assert guarded.post("/api/topics", {"topic": "t"}, **tom).status == 200  # who is an operator now


def test_a_new_password_logs_out(guarded: AdminThread, tmp_path: Path) -> None:
    ada = session_of(guarded, "ada")
    assert guarded.get("/api/topics", Authorization=basic("ada", "lovelace")).status == 200
    user_file(tmp_path, {"ada": ("admin", "new")})
    guarded.call(guarded.daemon.reload)
    assert guarded.get("/api/topics", Cookie=ada["Cookie"]).status == 401
    assert guarded.get("/api/topics", Authorization=basic("ada", "lovelace")).status == 401


def test_a_broken_file_of_users_changes_nothing(guarded: AdminThread, users: Path) -> None:
    ada = session_of(guarded, "ada")
    users.write_text("nonsense")
    guarded.call(guarded.daemon.reload)
    assert guarded.get("/api/topics", Cookie=ada["Cookie"]).status == 200


def test_a_trusted_proxy_says_who_asks(start_admin: StartAdmin) -> None:
    admin = start_admin(trusted_proxy_cidr=("127.0.0.0/8",), admin_user=("ada",))
    assert admin.get("/api/topics").error == (401, "LOGIN_REQUIRED")
    assert admin.get("/api/topics", X_Forwarded_User="tom").status == 200
    assert admin.post("/api/topics", {"topic": "t"}, X_Forwarded_User="tom").error == (403, "FORBIDDEN")
    assert admin.post("/api/topics", {"topic": "t"}, X_Forwarded_User="ada").status == 200
    assert admin.post("/login", {"user": "ada", "password": "x"}).error == (404, "NOT_FOUND")


def test_anybody_else_cannot_say_who_they_are(start_admin: StartAdmin, users: Path) -> None:
    admin = start_admin(trusted_proxy_cidr=("10.0.0.0/8",), user_file=str(users))
    assert admin.get("/api/topics", X_Forwarded_User="ada").error == (401, "LOGIN_REQUIRED")


def test_the_file_of_users_gives_a_trusted_proxys_users_their_roles(start_admin: StartAdmin, users: Path) -> None:
    admin = start_admin(trusted_proxy_cidr=("127.0.0.0/8",), user_file=str(users))
    assert admin.post("/api/topics", {"topic": "t"}, X_Forwarded_User="olga").status == 200
    assert admin.post("/api/topics", {"topic": "t"}, X_Forwarded_User="tom").error == (403, "FORBIDDEN")
    assert admin.get("/api/topics", X_Forwarded_User="stranger").error == (401, "LOGIN_REQUIRED")


def test_logging_in_and_out_is_recorded(guarded: AdminThread, tmp_path: Path) -> None:
    log_in(guarded, "ada\n{}", "wrong")
    guarded.post("/logout", **session_of(guarded, "ada"))
    lines = [(line["action"], line["outcome"], line["user"]) for line in audit(tmp_path)]
    assert lines == [("log_in", "refused", ""), ("log_in", "done", "ada"), ("log_out", "done", "ada")]
    assert audit(tmp_path)[0]["detail"] == "ada\n{}"
    assert "wrong" not in (tmp_path / "audit").read_text()
