"""Stacks of threads and tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from emberq.http.debug import MAX_FRAMES, StackSampler, describe_all
from tests.support.waiting import wait_until


@contextmanager
def waiting_thread() -> Iterator[None]:
    """A thread that stands in a function of its own."""
    ready, done = threading.Event(), threading.Event()

    def stand_still_here() -> None:
        ready.set()
        done.wait()

    thread = threading.Thread(target=stand_still_here, name="standing")
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


async def test_threads_and_tasks_are_shown_where_they_stand() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with waiting_thread():
        task = asyncio.create_task(wait_for_ever(), name="patient")
        await asyncio.sleep(0)
        shown = describe_all()
        task.cancel()
    assert "thread standing\n" in shown
    assert "in stand_still_here" in shown
    assert "\n2 tasks\n" in shown
    assert "name='patient'" in shown
    assert "in wait_for_ever" in shown


def test_samples_are_counted_by_stack() -> None:
    sampler = StackSampler()
    with waiting_thread():
        sampler.start()
        wait_until(lambda: "stand_still_here" in sampler.report())
        sampler.stop()
    line = next(line for line in sampler.report().splitlines() if "stand_still_here" in line)
    stack, _, count = line.rpartition(" ")
    functions = stack.split(";")
    assert int(count) >= 1
    assert functions[0].startswith("threading.Thread._bootstrap:")
    assert functions[-1].startswith("threading.")
    assert all(function.rpartition(":")[2].isdigit() for function in functions)


def test_the_sampler_leaves_itself_out_and_ends_its_thread() -> None:
    before = set(threading.enumerate())  # of which some, left behind by others, may end meanwhile
    sampler = StackSampler()
    sampler.start()
    wait_until(lambda: bool(sampler.report()))
    sampler.stop()
    assert "StackSampler._sample" not in sampler.report()
    assert set(threading.enumerate()) <= before


def test_a_deep_stack_is_cut_at_its_outer_end() -> None:
    sampler = StackSampler()

    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        else:
            sampler.start()
            wait_until(lambda: "dive" in sampler.report())
            sampler.stop()

    dive(MAX_FRAMES)
    stacks = [line.rpartition(" ")[0].split(";") for line in sampler.report().splitlines() if "dive" in line]
    assert stacks
    assert all(len(stack) == MAX_FRAMES for stack in stacks)
