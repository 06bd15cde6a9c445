"""nsqd's link to its nsqlookupds: what exists here is registered with all of them, and each can be asked.

Every nsqlookupd is on its own: one that is down or slow delays neither nsqd nor the others. Which ones there are may
change while nsqd runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

from emberq.base.clock import Clock
from emberq.base.http_query import HttpClient, HttpQueryError
from emberq.base.timers import Timers
from emberq.broker.broker import Change
from emberq.lookupd.protocol import NsqdIdentity
from emberq.nsqd.lookup.conversation import Snapshot
from emberq.nsqd.lookup.peer import LookupPeer, PeerContext
from emberq.nsqd.lookup.protocol import AnswerError, parse_channels, registration

MAX_CHANNELS_BYTES = 1024 * 1024
"""For the `HttpClient`: an answer that lists more than ten thousand channels of one topic is no sound answer."""
STOP_TIMEOUT_S = 1.0
"""A task that was cancelled ends within a turn of the loop; this is in case one does not."""

_log = logging.getLogger(__name__)


class LookupLink:
    """Owns the peers. Owned by the daemon; lives in the loop's thread."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        identity: NsqdIdentity,
        snapshot: Snapshot,
        http_client: HttpClient,
        max_answer_bytes: int,
        clock: Clock,
        timers: Timers,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.addresses = addresses
        """As they were given, in order."""
        self._http = http_client
        self._tasks: set[asyncio.Task[None]] = set()
        """Whatever runs on behalf of the link; held here because the loop does not hold its tasks."""
        self._context = PeerContext(
            identity=identity,
            snapshot=snapshot,
            max_answer_bytes=max_answer_bytes,
            clock=clock,
            timers=timers,
            spawn=self.spawn,
            chance=chance,
        )
        self._peers: dict[str, LookupPeer] = {}

    def __repr__(self) -> str:
        return f"<LookupLink {list(self._peers.values())}>"

    @property
    def peers(self) -> tuple[LookupPeer, ...]:
        """One for each address, in order."""
        return tuple(self._peers.values())

    def start(self) -> None:
        """Begin to connect."""
        self.set_addresses(self.addresses)

    async def stop(self) -> None:
        """Hang up. Nothing is unregistered: a nsqlookupd forgets an nsqd whose connection is gone."""
        for peer in self._peers.values():
            peer.close()
        self._peers = {}
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """Hang up on those that are not among these, connect to those that are new; the others stay connected."""
        before = self._peers
        self.addresses = addresses
        self._peers = {address: before.get(address) or LookupPeer(address, self._context) for address in addresses}
        for address, peer in before.items():
            if address not in self._peers:
                peer.close()
        for address, peer in self._peers.items():
            if address not in before:
                peer.start()

    def changed(self, change: Change) -> None:
        """Tell everyone of a topic or channel that came or went."""
        command = registration(topic=change.topic, channel=change.channel, exists=change.exists)
        for peer in self._peers.values():
            peer.tell(command)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until it ends or the link is stopped."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Asking.

    async def ask_channels(self, topic: str, *, found: Callable[[list[str]], None]) -> None:
        """Ask all nsqlookupds at once which channels the topic has elsewhere; `found` is called with each answer.

        Returns when the last has answered or will not: `found` gets nothing from those, but the log gets a line. One
        that was never tried yet, because nsqd has just started, is waited for as long as its first attempt takes.
        """
        peers = self.peers
        if not peers:
            return
        await asyncio.gather(*(self._ask_peer(peer, topic, found) for peer in peers))
        if all(peer.info.http_address is None for peer in peers):
            _log.error("no available nsqlookupd to query for channels to pre-create for topic %s", topic)

    async def _ask_peer(self, peer: LookupPeer, topic: str, found: Callable[[list[str]], None]) -> None:
        await peer.tried.wait()
        http_address = peer.info.http_address
        if http_address is None:
            return
        async with peer.query_slots:
            try:
                document = await self._http.get_json(f"http://{http_address}/channels?{urlencode({'topic': topic})}")
                channels = parse_channels(document)
            except (HttpQueryError, AnswerError) as failure:
                _log.warning(
                    "failed to query nsqlookupd %s for channels of topic %s - %s", http_address, topic, failure
                )
                return
        found(channels)
