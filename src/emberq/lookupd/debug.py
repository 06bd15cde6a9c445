"""GET /debug: the registry as it is, with nothing filtered out.

    {"channel:orders:billing":[producer…],"client::":[producer…],"topic:orders:":[producer…]}

Keys without producers are left out. Only topics have tombstones, and one that has expired is still shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from emberq.base.clock import Clock
from emberq.http.message import JSON, V1_HEADERS, Request, Response, encode_json
from emberq.lookupd.registry import Producer, Registry

NEVER_NS = -6_795_364_578_871_345_152
"""What the reference shows as the time of a tombstone that never was: the year 1, wrapped around."""
PRODUCERS_PER_TURN = 500
"""A dump of everything can be long: others get their turn after so many, which take a few milliseconds."""


class _Key(NamedTuple):
    name: str
    """`category:key:subkey`."""
    topic: str | None
    """Whose tombstones count; None if none do."""
    producers: Iterable[Producer]


class DebugApi:
    """Reads the registry over several turns of the loop: what changes meanwhile shows in part."""

    def __init__(self, registry: Registry, *, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    async def dump(self, _request: Request) -> Response:
        members: list[str] = []
        shown_count = 0
        for key in sorted(self._keys(), key=lambda key: key.name):
            producers = [self._shown(producer, key.topic) for producer in key.producers]
            members.append(f'"{key.name}":[{",".join(producers)}]')
            shown_count += len(producers)
            if shown_count >= PRODUCERS_PER_TURN:
                shown_count = 0
                await asyncio.sleep(0)
        body = "{" + ",".join(members) + "}"
        return Response(200, body.encode(), content_type=JSON, headers=V1_HEADERS)

    def _keys(self) -> Iterator[_Key]:
        if self._registry.producers:
            yield _Key("client::", None, self._registry.producers)
        for topic, channel, holders in self._registry.registrations():
            if channel:
                yield _Key(f"channel:{topic}:{channel}", None, holders.values())
            else:
                yield _Key(f"topic:{topic}:", topic, holders.values())

    def _shown(self, producer: Producer, topic: str | None) -> str:
        identity = producer.peer.identity
        tombstoned_ns = None if topic is None else producer.tombstones.get(topic)
        shown = {
            "broadcast_address": identity.broadcast_address,
            "hostname": identity.hostname,
            "http_port": identity.http_port,
            "id": producer.peer.remote_address,
            "last_update": self._wall_ns(producer.heard_ns),
            "tcp_port": identity.tcp_port,
            "tombstoned": tombstoned_ns is not None,
            "tombstoned_at": NEVER_NS if tombstoned_ns is None else self._wall_ns(tombstoned_ns),
            "topology_region": identity.topology_region,
            "topology_zone": identity.topology_zone,
            "version": identity.version,
        }
        return encode_json(shown).decode()

    def _wall_ns(self, monotonic_ns: int) -> int:
        """What the wall clock showed then, if it did not jump since."""
        return self._clock.wall_ns() - (self._clock.monotonic_ns() - monotonic_ns)
