"""A connection as /stats shows it."""

from __future__ import annotations

from collections.abc import Mapping

from emberq.base.clock import NS_PER_SECOND
from emberq.broker.stats import ClientStats
from emberq.broker.subscriber import Subscriber
from emberq.nsqd.auth.connection import ConnectionAuth
from emberq.nsqd.tls_connection import TlsConnection
from emberq.wire.compression import Codec, DeflateCodec, SnappyCodec
from emberq.wire.negotiation import ConnectionSettings


def client_stats(
    settings: ConnectionSettings,
    *,
    remote_address: str,
    connected_ns: int,
    state: int,
    subscriber: Subscriber | None,
    pub_counts: Mapping[str, int],
    codec: Codec | None,
    auth: ConnectionAuth | None,
    tls: TlsConnection | None,
) -> ClientStats:
    """What there is to tell of a connection with these parts, at this moment."""
    return ClientStats(
        client_id=settings.client_id,
        hostname=settings.hostname,
        user_agent=settings.user_agent,
        remote_address=remote_address,
        state=state,
        ready_count=subscriber.ready_count if subscriber else 0,
        in_flight_count=subscriber.in_flight.count if subscriber else 0,
        message_count=subscriber.message_count if subscriber else 0,
        finish_count=subscriber.finish_count if subscriber else 0,
        requeue_count=subscriber.requeue_count if subscriber else 0,
        connect_ts=connected_ns // NS_PER_SECOND,
        sample_rate=settings.sample_rate,
        deflate=isinstance(codec, DeflateCodec),
        snappy=isinstance(codec, SnappyCodec),
        authed=auth is not None and auth.is_authorized,
        auth_identity=auth.identity if auth else "",
        auth_identity_url=auth.identity_url if auth else "",
        tls=tls is not None,
        tls_version=tls.version if tls else "",
        tls_cipher_suite=tls.cipher_suite if tls else "",
        tls_negotiated_protocol=tls.negotiated_protocol if tls else "",
        topology_zone=settings.topology_zone,
        topology_region=settings.topology_region,
        pub_counts=tuple(pub_counts.items()),
    )
