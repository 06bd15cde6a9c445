"""An nsqd's answer to /stats?format=json, as figures of that node."""

from __future__ import annotations

from emberq.cluster.client_sieve import ClientSieve
from emberq.cluster.document import Document, Integers, MalformedDocument, flag, integer, objects, text
from emberq.cluster.latency import Latency, latency_of
from emberq.cluster.producer import Producer
from emberq.cluster.stats import ChannelStats, ClientStats, DeadLetterPolicy, TopicStats

TOPIC_FIGURES = ("depth", "backend_depth", "message_count")
CHANNEL_FIGURES = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
)
_OF_TOPIC = Integers(*TOPIC_FIGURES)
_OF_CHANNEL = Integers(*CHANNEL_FIGURES)
LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_OF_LOCALITY = Integers(*LOCALITIES)
NOWHERE = (0, 0, 0)
"""Of those who have no deliveries by distance."""


class StatsReader:
    """Reads the answers of one nsqd."""

    def __init__(self, producer: Producer, sieve: ClientSieve | None = None) -> None:
        """With a sieve the clients go there, and channels have none."""
        self._producer = producer
        self._sieve = sieve
        self._node = producer.node  # computed once: an answer may have thousands of entries

    def topics(self, answer: Document) -> list[TopicStats]:
        """All topics in the answer."""
        return [self._topic(entry) for entry in objects(answer, "topics")]

    def _topic(self, entry: Document) -> TopicStats:
        name = text(entry, "topic_name")
        depth, backend_depth, message_count = _OF_TOPIC.of(entry)
        zone_local, region_local, elsewhere = localities_in(entry)
        return TopicStats(
            node=self._node,
            hostname=self._producer.hostname,
            topic_name=name,
            depth=depth,
            backend_depth=backend_depth,
            message_count=message_count,
            zone_local_msg_count=zone_local,
            region_local_msg_count=region_local,
            global_msg_count=elsewhere,
            paused=flag(entry, "paused"),
            latency=latency_in(entry),
            channels=tuple([self._channel(name, channel) for channel in objects(entry, "channels")]),
        )

    def _channel(self, topic: str, entry: Document) -> ChannelStats:
        clients = tuple([self._client(client) for client in objects(entry, "clients")])
        if self._sieve is not None:
            self._sieve.take(clients)
        depth, backend_depth, in_flight, deferred, requeue, timeout, message_count = _OF_CHANNEL.of(entry)
        zone_local, region_local, elsewhere = localities_in(entry)
        return ChannelStats(
            node=self._node,
            hostname=self._producer.hostname,
            topic_name=topic,
            channel_name=text(entry, "channel_name"),
            depth=depth,
            backend_depth=backend_depth,
            in_flight_count=in_flight,
            deferred_count=deferred,
            requeue_count=requeue,
            timeout_count=timeout,
            message_count=message_count,
            zone_local_msg_count=zone_local,
            region_local_msg_count=region_local,
            global_msg_count=elsewhere,
            client_count=integer(entry, "client_count") or len(clients),  # before 1.2 nsqd only lists them
            paused=flag(entry, "paused"),
            latency=latency_in(entry),
            clients=clients if self._sieve is None else (),
            policy=_policy(entry),
            dead_letter_count=integer(entry, "dead_letter_count"),
            redriven_count=integer(entry, "redriven_count"),
        )

    def _client(self, entry: Document) -> ClientStats:
        return ClientStats(
            node=self._node,
            remote_address=text(entry, "remote_address"),
            version=text(entry, "version"),
            client_id=text(entry, "client_id") or text(entry, "name"),  # `name` is what it was before 1.0
            hostname=text(entry, "hostname"),
            user_agent=text(entry, "user_agent"),
            connect_ts=integer(entry, "connect_ts"),
            in_flight_count=integer(entry, "in_flight_count"),
            ready_count=integer(entry, "ready_count"),
            finish_count=integer(entry, "finish_count"),
            requeue_count=integer(entry, "requeue_count"),
            message_count=integer(entry, "message_count"),
            sample_rate=integer(entry, "sample_rate"),
            deflate=flag(entry, "deflate"),
            snappy=flag(entry, "snappy"),
            authed=flag(entry, "authed"),
            auth_identity=text(entry, "auth_identity"),
            auth_identity_url=text(entry, "auth_identity_url"),
            tls=flag(entry, "tls"),
            tls_cipher_suite=text(entry, "tls_cipher_suite"),
            tls_version=text(entry, "tls_version"),
            tls_negotiated_protocol=text(entry, "tls_negotiated_protocol"),
            tls_negotiated_protocol_is_mutual=flag(entry, "tls_negotiated_protocol_is_mutual"),
            topology_region=text(entry, "topology_region"),
            topology_zone=text(entry, "topology_zone"),
            node_topology_region=self._producer.topology_region,
            node_topology_zone=self._producer.topology_zone,
        )


def _policy(entry: Document) -> DeadLetterPolicy | None:
    """What a channel does with messages that nobody can finish; only ours has policies."""
    said = entry.get("policy")
    if said is None:
        return None
    if not isinstance(said, dict):
        raise MalformedDocument("policy in the answer is not of the expected type")
    return DeadLetterPolicy(integer(said, "max_attempts"), text(said, "dead_letter_topic"))


def localities_in(entry: Document) -> tuple[int, ...]:
    """Deliveries by how far the client was; nsqd leaves out what is 0, so nearly always there are none."""
    return NOWHERE if entry.keys().isdisjoint(LOCALITIES) else _OF_LOCALITY.of(entry)


def latency_in(entry: Document) -> Latency:
    """The percentiles of an entry; `UNTRACKED` itself if it has none."""
    said = entry.get("e2e_processing_latency")
    if said is not None and not isinstance(said, dict):
        raise MalformedDocument("e2e_processing_latency in the answer is not of the expected type")
    return latency_of(said)
