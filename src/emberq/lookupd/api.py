"""nsqlookupd's HTTP API.

The topic `*` stands for every topic wherever a name is not checked, as in the reference: `/lookup?topic=*` and
`/channels?topic=*` answer for all topics together, and **`POST /topic/delete?topic=*` deletes everything**. There is
no confirmation and no undo, except that nsqds register anew when they reconnect.

Answers may be long (a topic of 2,000 nsqds, 100,000 topics), and other clients wait while one is made. So they are
joined from what is JSON already: a peer keeps its own, and names consist of characters that need no escaping.

GET /debug shows the registry as it is, with nothing filtered out:

    {"channel:orders:billing":[producer…],"client::":[producer…],"topic:orders:":[producer…]}

Keys without producers are left out. Only topics have tombstones, and one that has expired is still shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from heapq import merge

import emberq
from emberq.base.clock import Clock
from emberq.http.debug import profiler_routes
from emberq.http.message import (
    JSON,
    V1_HEADERS,
    HttpError,
    Query,
    Request,
    Response,
    empty,
    encode_json,
    json,
    plain,
    required,
)
from emberq.http.router import Route
from emberq.lookupd.registry import Key, Registry, TopicProducer
from emberq.wire.parameter import is_valid_name

_log = logging.getLogger(__name__)


def routes(registry: Registry, *, clock: Clock, has_token: bool = False) -> list[Route]:
    """The table of routes; for `has_token` see `http.debug.for_operators`."""
    api, debug = LookupApi(registry), DebugApi(registry, clock=clock)
    return [
        Route("GET", "/ping", ping),
        Route("GET", "/info", info),
        Route("GET", "/debug", debug.dump),
        Route("GET", "/lookup", api.lookup, quiet=True),
        Route("GET", "/topics", api.topics),
        Route("GET", "/channels", api.channels),
        Route("GET", "/nodes", api.nodes),
        Route("POST", "/topic/create", api.create_topic),
        Route("POST", "/topic/delete", api.delete_topic),
        Route("POST", "/topic/tombstone", api.tombstone),
        Route("POST", "/channel/create", api.create_channel),
        Route("POST", "/channel/delete", api.delete_channel),
        *profiler_routes(has_token=has_token),
    ]


def ping(_request: Request) -> Response:
    """For load balancers."""
    return plain("OK")


def info(_request: Request) -> Response:
    """For nsqadmin."""
    return json({"version": emberq.NSQ_VERSION, "emberq_version": emberq.__version__})


class LookupApi:
    """What consumers and nsqadmin read, and what operators and nsqadmin change."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def lookup(self, request: Request) -> Response:
        """All channels of a topic, and its producers that are active and not tombstoned."""
        topic = required(request.query(), "topic")
        if not self._registry.has_topic(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        channels = _names(self._registry.channels(topic))
        producers = _list(producer.peer.encoded for producer in self._registry.producers_of(topic))
        return _encoded(f'{{"channels":{channels},"producers":{producers}}}')

    def topics(self, _request: Request) -> Response:
        return _encoded(f'{{"topics":{_names(self._registry.topics())}}}')

    def channels(self, request: Request) -> Response:
        """A topic's channels; none if there is no such topic."""
        topic = required(request.query(), "topic")
        return _encoded(f'{{"channels":{_names(self._registry.channels(topic))}}}')

    def nodes(self, _request: Request) -> Response:
        """Every active nsqd with its topics, and which of them are tombstoned."""
        return _encoded(f'{{"producers":{_list(map(self._node, self._registry.active_producers()))}}}')

    def _node(self, producer: TopicProducer) -> str:
        if producer.tombstones:
            hidden = [self._registry.is_tombstoned(producer, topic) for topic in producer.topics]
            flags = ["true" if each else "false" for each in hidden]
        else:
            flags = ["false"] * len(producer.topics)
        return f'{producer.peer.encoded[:-1]},"tombstones":{_list(flags)},"topics":{_names(producer.topics)}}}'

    # Changes.

    def create_topic(self, request: Request) -> Response:
        topic = _valid(request.query(), "topic")
        _log.info("DB: adding topic(%s)", topic)
        self._registry.create_topic(topic)
        return empty()

    def delete_topic(self, request: Request) -> Response:
        """The name is not checked, and `*` means every topic. The topic need not exist."""
        topic = required(request.query(), "topic")
        _log.info("DB: removing topic(%s)", topic)
        self._registry.delete_topic(topic)
        return empty()

    def tombstone(self, request: Request) -> Response:
        """Hide one node from look-ups of a topic for a while. Neither has to be known."""
        query = request.query()
        topic, node = required(query, "topic"), required(query, "node")
        _log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        self._registry.tombstone(topic=topic, node=node)
        return empty()

    def create_channel(self, request: Request) -> Response:
        topic, channel = _valid_names(request.query())
        _log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._registry.create_channel(topic=topic, channel=channel)
        return empty()

    def delete_channel(self, request: Request) -> Response:
        topic, channel = _valid_names(request.query())
        if not self._registry.delete_channel(topic=topic, channel=channel):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        _log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return empty()


# Parameters.


def _valid(query: Query, name: str) -> str:
    """A parameter that must be a valid name of a topic or channel."""
    value = required(query, name)
    if not is_valid_name(value):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return value


def _valid_names(query: Query) -> tuple[str, str]:
    """Topic and channel. The topic is checked first."""
    return _valid(query, "topic"), _valid(query, "channel")


# JSON joined from JSON.


def _names(names: Iterable[str]) -> str:
    """A JSON list of names of topics or channels."""
    joined = '","'.join(names)
    return f'["{joined}"]' if joined else "[]"


def _list(values: Iterable[str]) -> str:
    """A JSON list of what is JSON already."""
    return f"[{','.join(values)}]"


def _encoded(document: str) -> Response:
    """A V1 answer of what is JSON already."""
    return Response(200, document.encode(), content_type=JSON, headers=V1_HEADERS)


# /debug.

KEYS_PER_TURN = 2_000
"""Names that are sorted at a time, which takes a millisecond."""
NEVER_NS = -6_795_364_578_871_345_152
"""What the reference shows as the time of a tombstone that does not exist: the year 1, wrapped around."""
PRODUCERS_PER_TURN = 500
"""A dump can be long. After so many producers, which take a few milliseconds, other clients get a turn."""

_CLIENTS: Key = ("", "")
"""Stands for the key of all producers."""


class DebugApi:
    """GET /debug. Reads the registry over several turns of the loop: changes in between show in part."""

    def __init__(self, registry: Registry, *, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    async def dump(self, _request: Request) -> Response:
        members: list[str] = []
        left = PRODUCERS_PER_TURN
        for name, key in merge(*await self._sorted_keys()):
            producers = self._registry.producers if key is _CLIENTS else self._registry.holders(key)
            topic = None if key[1] else key[0] or None
            if producers:
                members.append(f'"{name}":[{",".join([self._shown(producer, topic) for producer in producers])}]')
            left -= len(producers) or 1
            if left <= 0:
                left = PRODUCERS_PER_TURN
                await asyncio.sleep(0)
        return _encoded("{" + ",".join(members) + "}")

    async def _sorted_keys(self) -> list[list[tuple[str, Key]]]:
        """All keys behind their names, `category:key:subkey`, in lists that are sorted."""
        keys = [_CLIENTS, *self._registry.all_keys()]
        portions = []
        for start in range(0, len(keys), KEYS_PER_TURN):
            portions.append(sorted((_name(key), key) for key in keys[start : start + KEYS_PER_TURN]))
            await asyncio.sleep(0)
        return portions

    def _shown(self, producer: TopicProducer, topic: str | None) -> str:
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
        """The wall clock's time at a moment of the monotonic clock, if it did not jump since."""
        return self._clock.wall_ns() - (self._clock.monotonic_ns() - monotonic_ns)


def _name(key: Key) -> str:
    if key is _CLIENTS:
        return "client::"
    topic, channel = key
    return f"channel:{topic}:{channel}" if channel else f"topic:{topic}:"
