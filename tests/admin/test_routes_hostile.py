"""Whatever a client sends, nsqadmin answers with what it should, and never with a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emberq.embedded import EmbeddedThread
from tests.support.admin_rig import AdminThread, of_cluster, user_file

HEADERS = ("Authorization", "Cookie", "Origin", "Host", "X-Forwarded-User", "X-CSRF-Token", "Content-Type")
PATHS = ("/api/topics", "/api/topics/t", "/api/topics/t/c", "/api/publish/t", "/login", "/logout")
HEADER_VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255, blacklist_characters="\x7f"), max_size=40)
JSON_BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.dictionaries(
        st.sampled_from(["topic", "channel", "action", "user", "password", "body", "body_base64", "to", "count"]), inner
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AdminThread, AdminThread]]:
    """One that everybody has to log in to, and one that is open."""
    users: Path = user_file(tmp_path_factory.mktemp("users"), {"ada": ("admin", "a")})
    with EmbeddedThread() as nsq, of_cluster(nsq, user_file=str(users)) as closed, of_cluster(nsq) as open_:
        yield closed, open_


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    path=st.sampled_from(PATHS),
    headers=st.dictionaries(st.sampled_from(HEADERS), HEADER_VALUES, max_size=3),
    body=JSON_BODIES | st.binary(max_size=40),
)
def test_no_request_makes_it_crash(
    guarded: tuple[AdminThread, AdminThread], path: str, headers: dict[str, str], body: object
) -> None:
    for admin in guarded:
        answer = admin.request("POST", path, body, **headers)
        assert answer.status in (200, 303, 400, 401, 403, 404, 429, 502), answer
        assert b"<" not in answer.body
