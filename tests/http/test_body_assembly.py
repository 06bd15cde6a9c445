"""Long texts, made while others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator

from emberq.http.body import AT_ONCE_STEPS, PORTION_STEPS, Assembly
from tests.support.waiting import turns

LONG = 10 * PORTION_STEPS


def numbers(count: int, made: list[int]) -> Iterator[str]:
    """Pieces that say when they are made."""
    for number in range(count):
        made.append(number)
        yield f"{number} "


def text_of(count: int) -> bytes:
    return b"".join(b"%d " % number for number in range(count))


def test_a_short_text_is_made_at_once() -> None:
    assert Assembly().make(numbers(AT_ONCE_STEPS - 1, []), bytes) == text_of(AT_ONCE_STEPS - 1)


async def test_of_a_long_text_one_portion_is_made_in_a_turn_of_the_loop() -> None:
    made: list[int] = []
    answer = Assembly().make(numbers(LONG, made), bytes)
    assert not isinstance(answer, bytes)
    task = asyncio.ensure_future(answer)
    portions: list[int] = []
    while not task.done():
        before = len(made)
        await asyncio.sleep(0)
        portions.append(len(made) - before)
    assert max(portions) == PORTION_STEPS
    assert task.result() == text_of(LONG)


async def test_two_long_texts_do_not_share_a_turn() -> None:
    assembly, first, second = Assembly(), list[int](), list[int]()
    answers = [assembly.make(numbers(LONG, made), bytes) for made in (first, second)]
    tasks = [asyncio.ensure_future(answer) for answer in answers if not isinstance(answer, bytes)]
    while len(first) < LONG:
        before = len(first) + len(second)
        await asyncio.sleep(0)
        assert len(first) + len(second) - before <= PORTION_STEPS
    assert len(second) == AT_ONCE_STEPS
    assert await asyncio.gather(*tasks) == [text_of(LONG)] * 2


async def test_a_short_text_does_not_wait_for_a_long_one() -> None:
    assembly = Assembly()
    long = assembly.make(numbers(LONG, []), bytes)
    assert not isinstance(long, bytes)
    task = asyncio.ensure_future(long)
    await turns(2)
    assert assembly.make(iter("ab"), bytes) == b"ab"
    assert await task == text_of(LONG)


async def test_a_text_of_megabytes_is_put_together_whole() -> None:
    piece = "x" * 50_000
    answer = Assembly().make(iter([piece] * PORTION_STEPS), len)
    assert not isinstance(answer, int)
    assert await answer == PORTION_STEPS * len(piece)


async def test_steps_are_taken_in_portions() -> None:
    taken: list[int] = []

    def steps() -> Generator[None, None, str]:
        for number in range(LONG):
            taken.append(number)
            yield
        return "done"

    task = asyncio.ensure_future(Assembly().run(steps()))
    while not task.done():
        before = len(taken)
        await asyncio.sleep(0)
        assert len(taken) - before <= PORTION_STEPS
    assert (task.result(), len(taken)) == ("done", LONG)


def test_half_a_surrogate_pair_does_not_break_a_text() -> None:
    assert Assembly().make(iter(["a\ud800b"]), bytes) == b"a?b"
