"""What protects browsers from what they are sent."""

from __future__ import annotations

import pytest

from emberq.embedded import EmbeddedThread
from tests.support.admin_rig import AdminThread
from tests.support.embedded import post


@pytest.mark.parametrize("path", ["/", "/login", "/api/topics", "/api/topics/nope", "/config/log_level", "/ping"])
def test_every_answer_leaves_the_browser_no_choice(admin: AdminThread, path: str) -> None:
    headers = admin.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_pages_are_html_and_nothing_else_is(admin: AdminThread) -> None:
    for page in ("/", "/topics", "/topics/t", "/topics/t/c", "/nodes", "/nodes/n:1", "/counter", "/lookup"):
        answer = admin.get(page)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert admin.get("/api/topics").headers["content-type"] == "application/json; charset=utf-8"


HOSTILE = "%3C/script%3E%3Cimg%20src=x%20onerror=alert(1)%3E%22%27%0d%0aSet-Cookie:%20a=b"


def test_a_hostile_name_stays_a_name(admin: AdminThread, cluster: EmbeddedThread) -> None:
    post(cluster.nsqd_http_addresses[0], "/topic/create?topic=t")
    for path in (f"/api/topics/{HOSTILE}", f"/api/topics/t/{HOSTILE}", f"/api/nodes/{HOSTILE}", f"/config/{HOSTILE}"):
        answer = admin.get(path)
        assert answer.status in (400, 404, 502)
        assert b"<" not in answer.body
        assert b"\n" not in answer.body
        assert "set-cookie" not in answer.headers
    page = admin.get(f"/topics/{HOSTILE}")
    assert b"<img src=x" not in page.body
    assert "set-cookie" not in page.headers
    view = admin.get(f"/api/view?view=topic&topic={HOSTILE}")
    assert (view.status, "set-cookie" in view.headers) == (404, False)


def test_what_is_long_is_compressed_for_those_who_can_undo_it(admin: AdminThread) -> None:
    answer = admin.get("/topics", Accept_Encoding="gzip")
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert "content-security-policy" in answer.headers
