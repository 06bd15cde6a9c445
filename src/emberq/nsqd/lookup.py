"""All nsqlookupds of this nsqd: registering what exists here, and asking for the channels of a new topic.

Each nsqlookupd is independent: one that is down or slow delays neither nsqd nor the others. The list of nsqlookupds may
change while nsqd runs.

With `--lookupd-tls` all of them are spoken to by TLS, for registering and for questions, and the names in their
certificates are checked (`LookupTls`).

Pre-creation: a new topic starts with the channels that it has on other nsqds. A consumer learns of a new nsqd of its
topic only when it next asks nsqlookupd. If the first messages went only to the channels that exist by then, the others
would miss them. So a new topic is *held*: what is published is accepted and waits in the topic, as when it is paused.
Meanwhile the nsqlookupds are asked for its channels. Each answer creates those that it names, and with the last answer
the topic is released.

Only the topic waits, never the event loop, a publisher or another topic. And it does not wait long: after MAX_HOLD_NS
it is released whatever is missing. Channels named by a later answer are created then, and get what is published from
there on. Topics that are loaded from disk have their channels and are not held.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol
from urllib.parse import urlencode

import emberq
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.base.tls import ReloadableContext, TlsError, TlsFileError, TlsVersion, client_context
from emberq.broker.broker import TopologyChange
from emberq.broker.error import BrokerError
from emberq.http.access import OwnSecret
from emberq.http.client import HttpClient, HttpQueryError, bearer
from emberq.nsqd.lookup_peer import LookupPeer, PeerContext, Snapshot
from emberq.nsqd.options import NsqdOptions
from emberq.storage.error import StorageError
from emberq.wire.lookup import AnswerError, NsqdIdentity, parse_channels, registration

_log = logging.getLogger(__name__)


class LookupService:
    """Registration and pre-creation, made from nsqd's options. Owned by the daemon.

    Created when the ports are known. The broker calls `changed`.
    """

    def __init__(
        self,
        options: NsqdOptions,
        *,
        tcp_port: int,
        http_port: int,
        snapshot: Snapshot,
        find_topic: Callable[[str], HeldTopic | None],
        clock: Clock,
        timers: Timers,
        tls: ssl.SSLContext | None = None,
        query_tls: ssl.SSLContext | None = None,
        secret: OwnSecret | None = None,
    ) -> None:
        """Without `tls` they are spoken to by plain TCP and HTTP. One that answers a question by leading us to HTTPS is
        judged by `query_tls` then."""
        self._link = LookupLink(
            options.lookupd_tcp_address,
            identity=_identity(options, tcp_port=tcp_port, http_port=http_port),
            snapshot=snapshot,
            http_client=HttpClient(
                connect_timeout_ns=options.http_client_connect_timeout_ns,
                request_timeout_ns=options.http_client_request_timeout_ns,
                tls=tls or query_tls,
                max_body_bytes=MAX_CHANNELS_BYTES,
            ),
            tls=tls,
            max_answer_bytes=options.max_body_size,
            clock=clock,
            timers=timers,
            secret=secret,
        )
        self._precreation = Precreation(self._link, find_topic=find_topic, clock=clock, timers=timers)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nsqlookupds that nsqd registers with."""
        return self._link.addresses

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """From here on, register with these."""
        self._link.set_addresses(addresses)

    def start(self) -> None:
        self._link.start()

    async def stop(self) -> None:
        """Close the connections and release the topics that are held."""
        _log.info("LOOKUP: closing")
        await self._link.stop()

    def changed(self, change: TopologyChange) -> None:
        """A topic or channel was created or deleted."""
        self.announce(change)
        self._precreation.changed(change)

    def announce(self, change: TopologyChange) -> None:
        """Register a topic or channel, or unregister it."""
        self._link.changed(change)


def _identity(options: NsqdOptions, *, tcp_port: int, http_port: int) -> NsqdIdentity:
    """What nsqd tells nsqlookupd of itself. Instead of a port, a Unix socket has 0."""
    return NsqdIdentity(
        broadcast_address=options.broadcast_address,
        hostname=socket.gethostname(),
        tcp_port=options.broadcast_tcp_port or max(0, tcp_port),
        http_port=options.broadcast_http_port or max(0, http_port),
        version=emberq.NSQ_VERSION,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )


# TLS with nsqlookupds.


class LookupTls:
    """How nsqd speaks TLS with nsqlookupds. Owned by the daemon; `load` before use."""

    def __init__(self, options: NsqdOptions) -> None:
        self._options = options
        self.context = ReloadableContext()
        """For all connections to nsqlookupds."""

    def load(self) -> None:
        """Read the files; TlsError if they cannot be used."""
        options = self._options
        lowest = max(options.tls_min_version, TlsVersion.TLS_1_2)  # OpenSSL's clients speak no older one
        try:
            self.context.current = client_context(
                ca_file=options.lookupd_tls_root_ca_file,
                cert_file=options.tls_cert,
                key_file=options.tls_key,
                minimum=ssl.TLSVersion(int(lowest)),
            )
        except TlsFileError as failure:
            files = options.lookupd_tls_root_ca_file if failure.is_authority else options.tls_cert
            why = f"{files}: {failure.reason.strerror or failure}"
            raise TlsError(f"failed to build TLS config for nsqlookupd - {why}") from failure

    def reload(self) -> None:
        """Read the files again, for all connections from now on. If they cannot be used, the old ones stay in use."""
        try:
            self.load()
        except TlsError as failure:
            _log.error("LOOKUP: %s; what was read before stays in use", failure)


# Registering and asking.

MAX_CHANNELS_BYTES = 1024 * 1024
"""The bound on an answer: more than ten thousand channels of one topic would be an error."""
STOP_TIMEOUT_S = 1.0
"""A cancelled task ends within a turn of the loop. If one does not, nsqd stops all the same."""


class LookupLink:
    """The connections to all nsqlookupds. Owned by `LookupService`; lives in the loop's thread."""

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
        tls: ssl.SSLContext | None = None,
        chance: Callable[[], float] = random.random,
        secret: OwnSecret | None = None,
    ) -> None:
        self.addresses = addresses
        """The addresses of the nsqlookupds, as they were given, in order."""
        self._http = http_client
        self._scheme = "http" if tls is None else "https"
        self._secret = secret
        """Shown where channels are asked for; None: the nsqlookupds want none."""
        self._entitled = frozenset(addresses)
        """The nsqlookupds that are shown it: not those that a client may have set since, by /config."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Connecting and asking. The event loop holds its tasks only weakly, so they are held here."""
        self._context = PeerContext(
            identity=identity,
            snapshot=snapshot,
            max_answer_bytes=max_answer_bytes,
            clock=clock,
            timers=timers,
            spawn=self.spawn,
            chance=chance,
            tls=tls,
        )
        self._peers: dict[str, LookupPeer] = {}

    def __repr__(self) -> str:
        return f"<LookupLink {list(self._peers.values())}>"

    @property
    def peers(self) -> tuple[LookupPeer, ...]:
        """One peer for each address, in order."""
        return tuple(self._peers.values())

    def start(self) -> None:
        """Begin to connect."""
        self.set_addresses(self.addresses)

    async def stop(self) -> None:
        """Close the connections. Nothing is unregistered: an nsqlookupd forgets an nsqd whose connection is gone."""
        for peer in self._peers.values():
            peer.close()
        self._peers = {}
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """Disconnect from those that are not listed, connect to those that are new; the others stay connected."""
        before = self._peers
        self.addresses = addresses
        self._peers = {address: before.get(address) or LookupPeer(address, self._context) for address in addresses}
        for address, peer in before.items():
            if address not in self._peers:
                _log.info("LOOKUP(%s): removing peer", address)
                peer.close()
        for address, peer in self._peers.items():
            if address not in before:
                _log.info("LOOKUP(%s): adding peer", address)
                peer.start()

    def changed(self, change: TopologyChange) -> None:
        """Tell every nsqlookupd of a topic or channel that was created or deleted."""
        command = registration(topic=change.topic, channel=change.channel, exists=change.exists)
        for peer in self._peers.values():
            peer.tell(command)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the link is stopped."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Asking.

    async def ask_channels(self, topic: str, *, found: Callable[[list[str]], None]) -> None:
        """Ask all nsqlookupds at once which channels the topic has elsewhere; `found` is called with each answer.

        Returns when each has answered or failed; a failure is logged. An nsqlookupd that was not tried yet, because
        nsqd has just started, is waited for until its first attempt ends.
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
        url = f"{self._scheme}://{http_address}/channels?{urlencode({'topic': topic})}"
        async with peer.query_slots:
            _log.info("CI: querying nsqlookupd %s", url)
            try:
                document = await self._http.get_json(url, headers=self._headers(peer))
                channels = parse_channels(document)
            except (HttpQueryError, AnswerError) as failure:
                _log.warning(
                    "failed to query nsqlookupd for channels to pre-create for topic %s - %s: %s",
                    topic,
                    http_address,
                    failure,
                )
                return
        found(channels)

    def _headers(self, peer: LookupPeer) -> dict[str, str]:
        if self._secret is None or peer.address not in self._entitled:
            return {}
        return bearer(self._secret.value)


# Pre-creation of channels.

MAX_HOLD_NS = 2 * NS_PER_SECOND
"""An nsqlookupd answers in milliseconds; this is enough for one that has just been started."""


class HeldTopic(Protocol):
    """What pre-creation needs of a topic."""

    @property
    def name(self) -> str: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def channel(self, name: str) -> object: ...


class Precreation:
    """Holds new topics until their channels exist. Owned by `LookupService`; what it runs ends with the link."""

    def __init__(
        self,
        link: LookupLink,
        *,
        find_topic: Callable[[str], HeldTopic | None],
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._link = link
        self._find_topic = find_topic
        self._clock = clock
        self._timers = timers

    def changed(self, change: TopologyChange) -> None:
        """Hold a topic that was created, and ask for its channels. No message is in it yet."""
        if change.channel is not None or not change.exists or not self._link.addresses:
            return
        topic = self._find_topic(change.topic)
        if topic is not None:
            topic.hold()
            self._link.spawn(self._prepare(topic))

    async def _prepare(self, topic: HeldTopic) -> None:
        release_alarm = self._timers.alarm(topic.release)
        release_alarm.set(self._clock.monotonic_ns() + MAX_HOLD_NS)
        try:
            await self._link.ask_channels(topic.name, found=lambda names: self._create(topic, names))
        finally:
            release_alarm.discard()
            topic.release()

    def _create(self, topic: HeldTopic, names: list[str]) -> None:
        if self._find_topic(topic.name) is not topic:
            return  # deleted meanwhile; a new topic of this name asks for itself
        for name in names:
            try:
                topic.channel(name)
            except (BrokerError, StorageError) as failure:
                _log.error("TOPIC(%s): failed to create channel %s - %s", topic.name, name, failure)
