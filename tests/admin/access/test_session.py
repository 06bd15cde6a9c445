"""Sessions."""

from __future__ import annotations

import pytest

from emberq.admin.access import session as module
from emberq.admin.access.session import MAX_SESSIONS_OF_USER, Sessions
from emberq.base.clock import NS_PER_SECOND, ManualClock


@pytest.fixture
def sessions(clock: ManualClock) -> Sessions:
    return Sessions(clock=clock, lifetime_ns=60 * NS_PER_SECOND)


def test_a_session_is_found_by_its_token_alone(sessions: Sessions) -> None:
    token, session = sessions.open("ada")
    assert sessions.find(token) is session
    assert sessions.find(token + "x") is None
    assert sessions.find("") is None
    assert session.knows(session.csrf_token)
    assert not session.knows(token)
    assert not session.knows("")
    assert session.csrf_token not in repr(session)


def test_a_session_ends_when_it_is_not_used(sessions: Sessions, clock: ManualClock) -> None:
    token, _ = sessions.open("ada")
    clock.advance(seconds=50)
    assert sessions.find(token) is not None
    clock.advance(seconds=50)
    assert sessions.find(token) is not None
    clock.advance(seconds=61)
    assert sessions.find(token) is None


def test_logging_out_ends_one_session_or_all_of_a_user(sessions: Sessions) -> None:
    first, _ = sessions.open("ada")
    second, _ = sessions.open("ada")
    other, _ = sessions.open("tom")
    sessions.close(first)
    assert (sessions.find(first), sessions.find(second) is None) == (None, False)
    sessions.close_all_of("ada")
    assert sessions.find(second) is None
    assert sessions.find(other) is not None


def test_a_user_has_so_many_sessions_and_no_more(sessions: Sessions) -> None:
    other, _ = sessions.open("tom")
    tokens = [sessions.open("ada")[0] for _ in range(MAX_SESSIONS_OF_USER + 1)]
    assert sessions.find(tokens[0]) is None
    assert sessions.find(tokens[1]) is not None
    assert sessions.find(other) is not None


def test_there_are_so_many_sessions_and_no_more(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    tokens = [sessions.open(f"user {number}")[0] for number in range(4)]
    assert [sessions.find(token) is None for token in tokens] == [True, False, False, False]


def test_what_has_ended_is_forgotten(sessions: Sessions, clock: ManualClock) -> None:
    sessions.open("ada")
    clock.advance(seconds=61)
    sessions.open("tom")
    assert len(sessions) == 1
