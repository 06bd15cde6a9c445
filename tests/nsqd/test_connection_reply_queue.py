"""Answers leave in the order of the commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emberq.nsqd.connection import ReplyQueue


def saying(said: list[str], word: str) -> Callable[[], None]:
    """An answer that can be seen to leave."""
    return lambda: said.append(word)


def test_an_answer_leaves_as_soon_as_it_is_known_if_none_is_before_it() -> None:
    line, said = ReplyQueue(), list[str]()
    line.settle(line.reserve(), saying(said, "one"))
    assert said == ["one"]
    assert len(line) == 0


def test_an_answer_waits_for_those_before_it() -> None:
    line, said = ReplyQueue(), list[str]()
    first, second, third = line.reserve(), line.reserve(), line.reserve()
    line.settle(second, saying(said, "two"))
    assert said == []
    line.settle(first, saying(said, "one"))
    assert said == ["one", "two"]
    assert len(line) == 1
    line.settle(third, saying(said, "three"))
    assert said == ["one", "two", "three"]


def test_a_place_that_is_taken_while_answers_leave_is_the_last() -> None:
    line, said = ReplyQueue(), list[str]()
    first, second = line.reserve(), line.reserve()

    def publish_again() -> None:
        said.append("one")
        line.settle(line.reserve(), saying(said, "three"))

    line.settle(second, saying(said, "two"))
    line.settle(first, publish_again)
    assert said == ["one", "two", "three"]


async def test_an_empty_line_is_drained() -> None:
    await ReplyQueue().drained()


async def test_whoever_waits_for_the_line_goes_on_when_the_last_answer_has_left() -> None:
    line, said = ReplyQueue(), list[str]()
    first, second = line.reserve(), line.reserve()
    waiting = asyncio.ensure_future(line.drained())
    await asyncio.sleep(0)
    line.settle(first, saying(said, "one"))
    await asyncio.sleep(0)
    assert not waiting.done()
    line.settle(second, saying(said, "two"))
    await waiting
    assert said == ["one", "two"]


async def test_a_line_can_be_awaited_again_after_a_wait_was_given_up() -> None:
    line, said = ReplyQueue(), list[str]()
    reply = line.reserve()
    given_up = asyncio.ensure_future(line.drained())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(line.drained())
    await asyncio.sleep(0)
    line.settle(reply, saying(said, "one"))
    await waiting


def test_nothing_leaves_behind_the_last_word() -> None:
    line, said = ReplyQueue(), list[str]()
    first, second, third = line.reserve(), line.reserve(), line.reserve()

    def refuse() -> None:
        said.append("error")
        line.abandon()

    line.settle(second, saying(said, "two"))
    line.settle(first, refuse)
    line.settle(third, saying(said, "three"))
    assert said == ["error"]
    assert len(line) == 0


async def test_whoever_waits_for_the_line_goes_on_when_it_is_abandoned() -> None:
    line = ReplyQueue()
    line.reserve()
    waiting = asyncio.ensure_future(line.drained())
    await asyncio.sleep(0)
    line.abandon()
    await waiting
