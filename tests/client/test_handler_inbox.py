"""The queue between connections and handlers."""

from __future__ import annotations

import asyncio

from emberq.base.clock import ManualClock
from emberq.client.handler import Inbox
from emberq.client.message import Message
from emberq.wire.frame import WireMessage
from tests.client.test_message import Recorder

SOON_NS, FAR_NS = 2_000_000_000, 1 << 62


def messages(*bodies: bytes, source: Recorder | None = None, deadline_ns: int = FAR_NS) -> list[Message]:
    source = source or Recorder()
    return [
        Message(WireMessage(1, 1, b"%016d" % index, body), source, deadline_ns=deadline_ns)
        for index, body in enumerate(bodies)
    ]


async def test_messages_come_out_in_order() -> None:
    inbox = Inbox(ManualClock())
    inbox.put(messages(b"a", b"b"))
    assert [(await inbox.get()).body for _ in range(2)] == [b"a", b"b"]  # type: ignore[union-attr]


async def test_what_is_there_can_be_taken_without_waiting() -> None:
    inbox, source = Inbox(ManualClock()), Recorder()
    assert inbox.get_nowait(0) is None
    inbox.put([*messages(b"late", source=source, deadline_ns=SOON_NS), *messages(b"fresh")])
    taken = inbox.get_nowait(SOON_NS)
    assert taken is not None
    assert taken.body == b"fresh"
    assert source.answers == [("abandoned", b"late")]
    assert inbox.get_nowait(SOON_NS) is None


async def test_every_waiting_task_gets_its_message() -> None:
    inbox = Inbox(ManualClock())
    takers = [asyncio.create_task(inbox.get()) for _ in range(5)]
    await asyncio.sleep(0)
    inbox.put(messages(b"a", b"b", b"c", b"d", b"e"))
    taken = await asyncio.gather(*takers)
    assert sorted(message.body for message in taken if message is not None) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_task_that_was_cancelled_a_moment_before_is_passed_over() -> None:
    inbox = Inbox(ManualClock())
    takers = [asyncio.create_task(inbox.get()) for _ in range(2)]
    await asyncio.sleep(0)
    takers[0].cancel()
    inbox.put(messages(b"a"))  # in the same turn of the loop: the task has not heard of its end yet
    cancelled, taken = await asyncio.gather(*takers, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(taken, Message)
    assert taken.body == b"a"


async def test_a_task_that_was_cancelled_a_moment_before_the_end_does_not_hold_it_up() -> None:
    inbox = Inbox(ManualClock())
    takers = [asyncio.create_task(inbox.get()) for _ in range(2)]
    await asyncio.sleep(0)
    takers[0].cancel()
    inbox.close()
    cancelled, taken = await asyncio.gather(*takers, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert taken is None


async def test_a_cancelled_task_passes_its_call_on() -> None:
    inbox = Inbox(ManualClock())
    cancelled, other = asyncio.create_task(inbox.get()), asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put(messages(b"a"))
    cancelled.cancel()
    taken = await other
    assert taken is not None
    assert taken.body == b"a"


async def test_a_closed_inbox_is_emptied_and_then_gives_nothing() -> None:
    inbox = Inbox(ManualClock())
    waiting = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.close()
    assert await waiting is None
    inbox.put(messages(b"a"))
    assert len(await inbox.get_batch(max_size=5, max_wait_s=9)) == 1
    assert not await inbox.get_batch(max_size=5, max_wait_s=9)


async def test_what_is_answered_or_timed_out_is_dropped() -> None:
    clock, source = ManualClock(), Recorder()
    inbox = Inbox(clock)
    answered, fresh = messages(b"answered", b"fresh")
    answered.finish()
    for _ in range(2):
        inbox.put([answered, *messages(b"late", source=source, deadline_ns=SOON_NS), fresh])
    clock.advance(seconds=5)
    assert await inbox.get() is fresh
    assert await inbox.get_batch(max_size=5, max_wait_s=0) == [fresh]
    assert source.answers == [("abandoned", b"late")] * 2


async def test_a_batch_waits_for_more_until_it_is_full() -> None:
    inbox = Inbox(ManualClock())
    batch = asyncio.create_task(inbox.get_batch(max_size=3, max_wait_s=20))
    for body in (b"a", b"b", b"c", b"d"):
        inbox.put(messages(body))
        await asyncio.sleep(0)
    assert (await batch).bodies == [b"a", b"b", b"c"]
    assert len(inbox) == 1


async def test_a_batch_that_nobody_will_see_goes_back_in_order() -> None:
    inbox = Inbox(ManualClock())
    inbox.put(messages(b"a", b"b"))
    batch = asyncio.create_task(inbox.get_batch(max_size=9, max_wait_s=20))
    await asyncio.sleep(0)
    assert len(inbox) == 0
    batch.cancel()
    await asyncio.gather(batch, return_exceptions=True)
    inbox.put(messages(b"c"))
    assert (await inbox.get_batch(max_size=9, max_wait_s=0)).bodies == [b"a", b"b", b"c"]
