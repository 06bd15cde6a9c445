"""What is said on one connection, and when."""

from __future__ import annotations

import pytest

from emberq.nsqd.lookup_peer import MAX_QUEUED, WINDOW, Conversation, FallenBehindError
from emberq.wire.lookup import PING, AnswerError, TopicAndChannels
from tests.nsqd.scripted_lookupd import IDENTITY, OK, framed, info


def conversation(*topics: TopicAndChannels) -> Conversation:
    """A conversation that has begun."""
    begun = Conversation(IDENTITY, address="lookupd:4160", snapshot=lambda: topics, max_answer_bytes=1000)
    assert begun.begin().startswith(b"  V1IDENTIFY\n")
    return begun


def identified(*topics: TopicAndChannels) -> Conversation:
    begun = conversation(*topics)
    assert begun.receive(info()) == 1
    return begun


def test_nothing_follows_identify_until_it_is_answered() -> None:
    talk = conversation(("t", ()))
    assert talk.output() == b""
    assert talk.awaited_count == 1
    talk.receive(info())
    assert talk.output() == b"REGISTER t\n"


def test_a_change_before_the_answer_is_in_the_snapshot_and_not_told_twice() -> None:
    topics: list[TopicAndChannels] = []
    talk = Conversation(IDENTITY, address="lookupd:4160", snapshot=lambda: topics, max_answer_bytes=1000)
    talk.begin()
    topics.append(("t", ()))
    talk.add(b"REGISTER t\n")
    talk.receive(info())
    assert talk.output() == b"REGISTER t\n"
    assert talk.output() == b""


def test_changes_follow_the_snapshot_in_order() -> None:
    talk = identified(("t", ("a", "b")))
    talk.add(b"UNREGISTER t a\n")
    talk.add(PING)
    assert talk.output() == b"REGISTER t a\nREGISTER t b\nUNREGISTER t a\nPING\n"
    assert talk.awaited_count == 4
    assert talk.receive(OK * 3) == 3
    assert talk.awaited_count == 1


def test_no_more_commands_wait_for_their_answers_than_the_window_allows() -> None:
    talk = identified(*((f"t{number}", ()) for number in range(2 * WINDOW)))
    talk.add(PING)
    sent = talk.output()
    assert sent.count(b"\n") == WINDOW
    assert talk.output() == b""
    talk.receive(OK * 2)
    sent += talk.output()
    assert sent.count(b"\n") == WINDOW + 2
    talk.receive(OK * WINDOW)
    sent += talk.output()
    assert sent.endswith(b"REGISTER t%d\nPING\n" % (2 * WINDOW - 1))
    assert sent.count(b"\n") == 2 * WINDOW + 1


def test_a_change_to_the_topics_after_the_snapshot_does_not_disturb_it() -> None:
    topics = {f"t{number}": () for number in range(2 * WINDOW)}
    talk = Conversation(IDENTITY, address="lookupd:4160", snapshot=topics.items, max_answer_bytes=1000)
    talk.begin()
    talk.receive(info())
    talk.output()
    topics.clear()
    talk.receive(OK * WINDOW)
    assert talk.output().count(b"\n") == WINDOW


def test_more_changes_than_can_be_kept_end_the_conversation() -> None:
    talk = identified()
    for _ in range(MAX_QUEUED):
        talk.add(PING)
    with pytest.raises(FallenBehindError):
        talk.add(PING)


@pytest.mark.parametrize("answer", [b"E_INVALID", b"", b"ok", b"OK\n"])
def test_an_answer_other_than_ok_ends_the_conversation(answer: bytes) -> None:
    talk = identified(("t", ()))
    talk.output()
    with pytest.raises(AnswerError):
        talk.receive(framed(answer))


def test_an_answer_that_nobody_asked_for_ends_the_conversation() -> None:
    with pytest.raises(AnswerError, match="not asked"):
        identified().receive(OK)


def test_half_an_answer_answers_nothing() -> None:
    talk = conversation()
    answer = info()
    assert talk.receive(answer[:-1]) == 0
    assert talk.info is None
    assert talk.receive(answer[-1:]) == 1
    assert talk.info is not None
