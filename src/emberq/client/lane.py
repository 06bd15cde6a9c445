"""Numbered batches for one nsqd, so that none of them is stored twice.

A producer that wants this has an id, and gives each batch for an nsqd a number, in the order in which they are sent.
nsqd takes a number that is not above the last one stored from this producer for a batch that it has already. Hence the
rules:

- A batch that was not confirmed is sent again with its number, to the same nsqd and to no other.
- When the connection is back, all batches that were not confirmed are sent again, in their order, before any new one:
  behind a later number, nsqd would drop what it never stored.
- A number is given at the moment of sending, with nothing in between that could let another batch pass.

A batch that is given up leaves a gap in the numbers, which does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from functools import partial

from emberq.client.error import ClosedError, ConnectionLost, NsqError, PublishRefused, RequestTimeout
from emberq.client.link import Link

MAX_UNCONFIRMED = 32
"""Batches under way at a time; the others wait. Enough to keep nsqd busy, and little enough to send all of it again."""

_RETRYABLE = (ConnectionLost, RequestTimeout, PublishRefused)


class _Batch:
    """A batch that has its number."""

    __slots__ = ("attempts", "command", "confirmed", "failure")

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.attempts = 0
        self.failure: NsqError | None = None
        """How the last attempt ended."""


class Lane:
    """Owned by a producer, which tells it when its link has changed."""

    def __init__(self, link: Link, *, max_attempts: int) -> None:
        self._link = link
        self._max_attempts = max_attempts
        self._next_number = 0
        self._unconfirmed: dict[int, _Batch] = {}
        """In the order of their numbers."""
        self._room = asyncio.Semaphore(MAX_UNCONFIRMED)

    async def publish(self, encode: Callable[[int], bytes], *, deadline_s: float) -> None:
        """Send what `encode` makes of its number, and return when it is confirmed; a failure at the deadline if not."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._room.acquire()
        except TimeoutError:
            raise self._late() from None
        try:
            await self._publish(encode, deadline_s)
        finally:
            self._room.release()

    async def _publish(self, encode: Callable[[int], bytes], deadline_s: float) -> None:
        number = self._next_number
        self._next_number += 1
        batch = self._unconfirmed[number] = _Batch(encode(number))
        if self._link.is_connected:
            self._send(batch)
        try:
            async with asyncio.timeout_at(deadline_s):
                await batch.confirmed
        except NsqError:
            raise  # some of these are TimeoutErrors, too
        except TimeoutError:
            raise self._given_up(batch) from None
        finally:
            del self._unconfirmed[number]

    def _late(self) -> RequestTimeout:
        return RequestTimeout(f"{self._link.address}: not confirmed in the time for a message")

    def _given_up(self, batch: _Batch) -> NsqError:
        failure = batch.failure or self._late()
        failure.add_note(f"given up after attempt {batch.attempts}")
        return failure

    def link_changed(self) -> None:
        """An attempt to connect has ended."""
        refusal = self._link.refusal
        for batch in list(self._unconfirmed.values()):
            if self._link.is_connected:
                self._send(batch)
            elif refusal is not None:
                _fail(batch, copy(refusal))  # a copy for each: a traceback grows where it is raised

    def close(self) -> None:
        """Nothing is sent again."""
        for batch in self._unconfirmed.values():
            _fail(batch, ClosedError("the producer was closed before the message was confirmed"))

    def _send(self, batch: _Batch) -> None:
        batch.attempts += 1
        try:
            answer = self._link.submit(batch.command)
        except ConnectionLost as failure:
            self._failed(batch, failure)
        else:
            answer.add_done_callback(partial(self._answered, batch))

    def _answered(self, batch: _Batch, answer: asyncio.Future[bytes]) -> None:
        failure = answer.exception()
        if failure is None:
            if not batch.confirmed.done():
                batch.confirmed.set_result(None)
        elif isinstance(failure, NsqError):
            self._failed(batch, failure)

    def _failed(self, batch: _Batch, failure: NsqError) -> None:
        """Any failure ends the connection; when there is another, the batch is sent again, if it may be."""
        batch.failure = failure
        if not isinstance(failure, _RETRYABLE):
            _fail(batch, failure)
        elif batch.attempts >= self._max_attempts:
            _fail(batch, self._given_up(batch))


def _fail(batch: _Batch, failure: NsqError) -> None:
    if not batch.confirmed.done():
        batch.confirmed.set_exception(failure)
