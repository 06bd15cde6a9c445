"""The table of works: what each is called, what it is, how much is done, and which flags nsqd needs for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench import certificate, event, traffic
from bench.metric import Metric
from bench.stage import MIXED, UNIFORM, Bodies, Size, Stage

_SPARE_QUEUE = 10_000
_BULK_MESSAGES = 250_000
_BULK_TIMES = 4  # a uniform message is a fifth as large as the usual mixed one; works in bulk would be too short

_LARGE = Bodies(least=1_000_000, most=1_000_000)
_TEXT = Bodies(is_text=True)
_PAGES = Bodies(least=2_000, most=2_000)
_SMALL = Bodies(least=250, most=250)
_TINY = Bodies(least=20, most=40)  # 12,000 of them to 500 channels are 400 MB on disk

_CHURNS: tuple[tuple[str, str, dict[str, int | str]], ...] = (
    ("plain", "20,000 connections that come and go, 200 at a time: what is left of them", {}),
    ("cut", "the same, each cut in the middle of an MPUB", {"cut": 1}),
    ("tls", "the same with TLS", {"tls": 1}),
    ("snappy", "the same with snappy", {"snappy": 1}),
    ("deflate", "the same with deflate", {"deflate": 1}),
)


def _in_memory(messages: int) -> tuple[str, ...]:
    return (f"--mem-queue-size={messages + _SPARE_QUEUE}",)


def _in_memory_with_tls(messages: int) -> tuple[str, ...]:
    return (*_in_memory(messages), *certificate.tls_flags())


def _large_in_memory(messages: int) -> tuple[str, ...]:
    return (*_in_memory(messages), "--max-msg-size=2000000")


def _on_disk(_: int) -> tuple[str, ...]:
    return ("--mem-queue-size=0",)


def _spilling(_: int) -> tuple[str, ...]:
    return event.SPILLING


def _syncing(_: int) -> tuple[str, ...]:
    return event.SYNCING


def _by_default(_: int) -> tuple[str, ...]:
    return ()


def _with_tls(_: int) -> tuple[str, ...]:
    return certificate.tls_flags()


_JOURNAL = ("--journal",)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A work: its name, what it is, its usual size, its bodies, the flags nsqd needs for it, and what is done."""

    name: str
    summary: str
    size: Size
    run: Callable[[Stage], list[Metric]]
    bodies: Bodies = MIXED
    flags: Callable[[int], tuple[str, ...]] = _in_memory
    own_flags: tuple[str, ...] = ()
    """Instead of those, for our nsqd: for works that only ours can do in that way."""


_MESSAGES = (
    Scenario(
        name="mpub",
        summary="MPUB of 200 into memory, one channel",
        size=Size(messages=500_000),
        run=traffic.mpub,
    ),
    Scenario(
        name="mpub-topic",
        summary="the same into a topic without channels",
        size=Size(messages=500_000),
        run=traffic.mpub_to_topic,
    ),
    Scenario(
        name="drain",
        summary="consume a full channel, RDY 2500, the FINs of a packet together",
        size=Size(messages=500_000),
        run=traffic.drain(),
    ),
    Scenario(
        name="drain-shuffled",
        summary="the same with FINs out of order",
        size=Size(messages=500_000),
        run=traffic.drain(fin="shuffled"),
    ),
    Scenario(
        name="through",
        summary="MPUB and consume at once",
        size=Size(messages=500_000),
        run=traffic.through,
    ),
    Scenario(
        name="pub",
        summary="single PUBs, each waiting for its OK, 16 connections",
        size=Size(messages=200_000),
        run=traffic.pub(connections=16),
    ),
    Scenario(
        name="pub-many",
        summary="the same with 64 connections",
        size=Size(messages=200_000),
        run=traffic.pub(connections=64),
    ),
    Scenario(
        name="pub-pipelined",
        summary="single PUBs, not waiting, 2 connections",
        size=Size(messages=400_000),
        run=traffic.pub_pipelined,
    ),
    Scenario(
        name="mpub-one",
        summary="MPUBs of one message, 2 connections that wait: NSQ's bench_writer with batch 1",
        size=Size(messages=100_000),
        run=traffic.mpub_of_one,
    ),
    Scenario(
        name="requeue",
        summary="consume a full channel, 20 % of the deliveries answered with REQ 0; deliveries",
        size=Size(messages=200_000),
        run=traffic.drain(requeue_percent=20),
    ),
    Scenario(
        name="rdy-one",
        summary="consume a full channel, 64 consumers with RDY 1",
        size=Size(messages=150_000),
        run=traffic.drain(connections=64, rdy=1),
    ),
    Scenario(
        name="dpub-in",
        summary="DPUB of 3 s, each waiting for its OK, 16 connections",
        size=Size(messages=150_000),
        run=traffic.dpub_in,
    ),
    Scenario(
        name="dpub-out",
        summary="consume deferred messages that are due at once",
        size=Size(messages=100_000),
        run=traffic.dpub_out,
    ),
    Scenario(
        name="topics-64",
        summary="MPUBs of 10 by turns to 64 topics, each waiting, 8 connections",
        size=Size(messages=500_000),
        run=traffic.mpub_to_topics(topics=64, batch=10),
    ),
    Scenario(
        name="topics-10",
        summary="the same to 10 topics",
        size=Size(messages=500_000),
        run=traffic.mpub_to_topics(topics=10, batch=10),
    ),
    Scenario(
        name="http-pub",
        summary="POST /pub, each waiting for its answer, 32 connections",
        size=Size(messages=150_000),
        run=traffic.http_pub,
    ),
    Scenario(
        name="http-mpub",
        summary="POST /mpub of 200 as lines, 32 connections",
        size=Size(messages=500_000),
        run=traffic.http_mpub,
    ),
    Scenario(
        name="http-mpub-binary",
        summary="the same as records, binary=true",
        size=Size(messages=500_000),
        run=traffic.http_mpub_binary,
    ),
    Scenario(
        name="fanout",
        summary="MPUB and consume at once, 10 channels, delivered messages",
        size=Size(messages=50_000),
        run=traffic.fanout(channels=10),
    ),
    Scenario(
        name="handler",
        summary="MPUBs of 100, then two handlers that finish one by one, as go-nsq does",
        size=Size(messages=200_000),
        run=traffic.handler(),
    ),
    Scenario(
        name="disk-in",
        summary="MPUB to disk, --mem-queue-size=0",
        size=Size(messages=100_000),
        run=traffic.mpub,
        flags=_on_disk,
    ),
    Scenario(
        name="disk-out",
        summary="consume a full channel from disk, --mem-queue-size=0",
        size=Size(messages=100_000),
        run=traffic.drain(),
        flags=_on_disk,
    ),
    Scenario(
        name="journal-in",
        summary="MPUB to a journal, fsynced before each OK; the peer to disk without that",
        size=Size(messages=300_000),
        run=traffic.mpub,
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="journal-out",
        summary="consume a full channel of a journal; the peer from disk",
        size=Size(messages=300_000),
        run=traffic.drain(),
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="journal-fanout",
        summary="MPUB to a journal and consume at once, 20 channels, delivered messages; the peer by disk",
        size=Size(messages=20_000),
        run=traffic.fanout(channels=20),
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="journal-replay",
        summary="consume a journal that is not in the page cache; the peer from its disk queue",
        size=Size(messages=300_000),
        run=traffic.replay,
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="overflow-in",
        summary="MPUB beyond the default memory queue, the rest to disk",
        size=Size(messages=100_000),
        run=traffic.mpub,
        flags=_by_default,
    ),
    Scenario(
        name="overflow-out",
        summary="consume a channel that overflowed to disk",
        size=Size(messages=100_000),
        run=traffic.drain(),
        flags=_by_default,
    ),
    Scenario(
        name="latency",
        summary="publish to delivery at 5,000 PUB/s, RDY 2500",
        size=Size(seconds=10),
        run=traffic.latency(),
        flags=_by_default,
    ),
    Scenario(
        name="latency-unbuffered",
        summary="the same, the consumer asking for no output buffer",
        size=Size(seconds=10),
        run=traffic.latency(buffer_bytes=-1),
        flags=_by_default,
    ),
    Scenario(
        name="memory",
        summary="memory of messages that came in MPUBs, one channel",
        size=Size(messages=250_000),
        run=traffic.memory,
    ),
    Scenario(
        name="memory-pub",
        summary="memory of messages that came in single PUBs, one channel",
        size=Size(messages=200_000),
        run=traffic.memory_of_singles(batch=0),
    ),
    Scenario(
        name="memory-mpub-one",
        summary="memory of messages that came in MPUBs of one message, as NSQ's bench_writer sends them with batch 1",
        size=Size(messages=200_000),
        run=traffic.memory_of_singles(batch=1),
    ),
)


def _uniform(scenario: Scenario) -> Scenario:
    times = _BULK_TIMES if scenario.size.messages >= _BULK_MESSAGES else 1
    return replace(
        scenario,
        name=f"{scenario.name}-uniform",
        summary=f"{scenario.name} with bodies of 200 B",
        size=replace(scenario.size, messages=scenario.size.messages * times),
        bodies=UNIFORM,
    )


_OTHERS = (
    Scenario(
        name="large",
        summary="bodies of 1 MB: single PUBs of 2 connections, then RDY 10",
        size=Size(messages=1_500),
        run=traffic.large,
        bodies=_LARGE,
        flags=_large_in_memory,
    ),
    Scenario(
        name="tls",
        summary="handler, with TLS",
        size=Size(messages=200_000),
        run=traffic.handler(tls=1),
        flags=_in_memory_with_tls,
    ),
    Scenario(
        name="snappy",
        summary="handler, with snappy and bodies of words",
        size=Size(messages=200_000),
        run=traffic.handler(snappy=1),
        bodies=_TEXT,
    ),
    Scenario(
        name="deflate",
        summary="handler, with deflate and bodies of words",
        size=Size(messages=50_000),
        run=traffic.handler(deflate=1),
        bodies=_TEXT,
    ),
    Scenario(
        name="http-stats",
        summary="GET /stats?format=json of a small nsqd, 32 connections",
        size=Size(messages=30_000),
        run=traffic.http_get("/stats?format=json"),
        flags=_by_default,
    ),
    Scenario(
        name="http-ping",
        summary="GET /ping, 32 connections",
        size=Size(messages=200_000),
        run=traffic.http_get("/ping"),
        flags=_by_default,
    ),
    Scenario(
        name="through-limits",
        summary="through, with limits on depth, bytes and age that are not reached",
        size=Size(messages=500_000),
        run=traffic.through,
        own_flags=(*_in_memory(500_000), "--mem-queue-bytes=0", "--topic-limit=*:max-depth=10000000:ttl=72h"),
    ),
    Scenario(
        name="mpub-drop-oldest",
        summary="mpub, into a channel that keeps the newest 10,000",
        size=Size(messages=500_000),
        run=traffic.mpub,
        own_flags=("--topic-limit=*:max-depth=10000:when-full=drop-oldest",),
    ),
    Scenario(
        name="unanswered",
        summary="memory with one message of each of 1000 batches in flight, 1000 x 250 B each",
        size=Size(messages=1_000_000),
        run=traffic.unanswered,
        bodies=_SMALL,
    ),
    Scenario(
        name="timeouts",
        summary="4000 consumers with msg_timeout 1 s, 500 messages a second",
        size=Size(seconds=10, many=4_000),
        run=traffic.timeouts,
        flags=_by_default,
    ),
    Scenario(
        name="idle",
        summary="connections that only wait, over one heartbeat each",
        size=Size(seconds=30, connections=10_000),
        run=traffic.idle,
        flags=_by_default,
    ),
)

_EVENTS = (
    Scenario(
        name="stall-empty",
        summary="/channel/empty of an unrelated channel while 500 channels have just spilled to disk",
        size=Size(many=500),
        run=event.empty,
        flags=_syncing,
    ),
    Scenario(
        name="stall-delete",
        summary="/topic/delete of 500 spilled channels",
        size=Size(many=500),
        run=event.delete,
        flags=_spilling,
    ),
    Scenario(
        name="stall-delete-1000",
        summary="/topic/delete of 1000 spilled channels",
        size=Size(many=1_000),
        run=event.delete,
        flags=_spilling,
    ),
    Scenario(
        name="stall-fanout",
        summary="an MPUB of 12,000 to 500 channels on disk",
        size=Size(many=500),
        run=event.fan_out,
        bodies=_TINY,
        flags=_on_disk,
    ),
    Scenario(
        name="stall-late-fins",
        summary="2500 FINs that come too late, in a channel of 5000 consumers",
        size=Size(many=5_000),
        run=event.late_fins,
        flags=_by_default,
    ),
    Scenario(
        name="stall-deferred",
        summary="100,000 deferred messages due at once",
        size=Size(messages=100_000),
        run=event.maturing,
    ),
    Scenario(
        name="stall-journal",
        summary="PUBs to a journal, fsynced, beside another of 2 GB: replayed cold, searched without index, deleted",
        size=Size(messages=1_000_000),
        run=event.journal,
        bodies=_PAGES,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="many-topics",
        summary="5000 idle topics: create, /stats, stop",
        size=Size(many=5_000),
        run=event.many_topics,
        flags=_by_default,
    ),
    Scenario(
        name="many-topics-1000",
        summary="the same with 1000",
        size=Size(many=1_000),
        run=event.many_topics,
        flags=_by_default,
    ),
    *(
        Scenario(
            name=f"churn-{kind}",
            summary=summary,
            size=Size(connections=20_000),
            run=traffic.churn(**settings),
            flags=_with_tls,
        )
        for kind, summary, settings in _CHURNS
    ),
)

SCENARIOS: tuple[Scenario, ...] = (*_MESSAGES, *_OTHERS, *_EVENTS, *(_uniform(scenario) for scenario in _MESSAGES))
