"""Answers leave in the order of the commands, and together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emberq.nsqd.connection import Output, ReplyQueue
from emberq.wire.error import FatalError


class Client:
    """What a client is told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        """Write by write."""
        self.output = Output()
        self.output.write = self.told.append
        self.line = ReplyQueue(self.output, fail=self.fail)

    def fail(self, wrong: FatalError) -> None:
        self.told.append(wrong.data)
        self.output.is_closing = True


def saying(word: bytes) -> Callable[[], bytes]:
    return lambda: word


async def turn() -> None:
    await asyncio.sleep(0)


async def test_an_answer_leaves_when_it_is_known_if_none_is_before_it() -> None:
    client = Client()
    client.line.settle(client.line.reserve(), saying(b"one"))
    await turn()
    assert client.told == [b"one"]
    assert len(client.line) == 0


async def test_an_answer_waits_for_those_before_it() -> None:
    client = Client()
    line = client.line
    first, second, third = line.reserve(), line.reserve(), line.reserve()
    line.settle(second, saying(b"two"))
    await turn()
    assert client.told == []
    line.settle(first, saying(b"one"))
    await turn()
    assert b"".join(client.told) == b"onetwo"
    assert len(line) == 1
    line.settle(third, saying(b"three"))
    await turn()
    assert b"".join(client.told) == b"onetwothree"


async def test_answers_that_become_known_together_leave_in_one_write() -> None:
    client = Client()
    places = [client.line.reserve() for _ in range(3)]
    for place, word in zip(places, (b"one", b"two", b"three"), strict=True):
        client.line.settle(place, saying(word))
    await turn()
    assert client.told == [b"onetwothree"]


async def test_a_place_that_is_taken_before_answers_leave_is_the_last() -> None:
    client = Client()
    line = client.line
    line.settle(line.reserve(), saying(b"one"))
    line.settle(line.reserve(), saying(b"two"))
    assert client.told == []
    await turn()
    assert b"".join(client.told) == b"onetwo"


async def test_a_place_that_is_taken_while_answers_leave_is_the_last() -> None:
    client = Client()
    line = client.line
    first, second = line.reserve(), line.reserve()

    def publish_again() -> bytes:
        line.settle(line.reserve(), saying(b"three"))
        return b"one"

    line.settle(second, saying(b"two"))
    line.settle(first, publish_again)
    await turn()
    await turn()
    assert b"".join(client.told) == b"onetwothree"
    assert len(line) == 0


async def test_an_empty_line_is_drained() -> None:
    await Client().line.drained()


async def test_whoever_waits_for_the_line_goes_on_when_the_last_answer_has_left() -> None:
    client = Client()
    first, second = client.line.reserve(), client.line.reserve()
    waiting = asyncio.ensure_future(client.line.drained())
    await turn()
    client.line.settle(first, saying(b"one"))
    await turn()
    assert not waiting.done()
    client.line.settle(second, saying(b"two"))
    await waiting
    assert b"".join(client.told) == b"onetwo"


async def test_a_line_can_be_awaited_again_after_a_wait_was_given_up() -> None:
    line = Client().line
    reply = line.reserve()
    given_up = asyncio.ensure_future(line.drained())
    await turn()
    given_up.cancel()
    await turn()
    waiting = asyncio.ensure_future(line.drained())
    await turn()
    line.settle(reply, saying(b"one"))
    await waiting


async def test_a_refusal_leaves_behind_the_answers_before_it_and_is_the_last() -> None:
    client = Client()
    line = client.line
    first, second, third = line.reserve(), line.reserve(), line.reserve()

    def refuse() -> bytes:
        raise FatalError(b"E_MPUB_FAILED", b"no room")

    line.settle(third, saying(b"three"))
    line.settle(second, refuse)
    line.settle(first, saying(b"one"))
    await turn()
    assert client.told[0] == b"one"
    assert client.told[1].startswith(b"E_MPUB_FAILED")
    assert len(client.told) == 2
    assert len(line) == 0


async def test_nothing_is_sent_to_who_has_gone() -> None:
    client = Client()
    reply = client.line.reserve()
    client.line.settle(reply, saying(b"one"))
    client.line.end()
    await turn()
    assert client.told == []


async def test_whoever_waits_for_the_line_goes_on_when_it_ends() -> None:
    line = Client().line
    line.reserve()
    waiting = asyncio.ensure_future(line.drained())
    await turn()
    line.end()
    await waiting
