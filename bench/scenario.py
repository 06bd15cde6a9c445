"""The works: what is done to a server, and which numbers come out. The table at the end names them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench import frame, http, process
from bench.crew import Plan
from bench.idle import Crowd, allow_open_files
from bench.metric import Metric, percentile
from bench.publisher import LockstepPost, LockstepPublish, PacedPublish, PipelinedPublish
from bench.stage import PUBLISHERS, Size, Stage, shares

_CHANNEL = "c"
_MANY_PUBLISHERS = 64
_FEW_PUBLISHERS = 16
_HTTP_PUBLISHERS = 32
_PUBS_PER_PAYLOAD = 64
_FANOUT_CHANNELS = 10
_WIDE_FANOUT_CHANNELS = 20
_FANOUT_CONSUMERS = 2  # processes that share the channels
_LATENCY_RATE = 5_000
_LATENCY_COUNTED = (10, 95)  # percent: not the cold start, nor the last buffer that nothing follows
_SPARE_QUEUE = 10_000


def mpub(stage: Stage) -> list[Metric]:
    stage.create(_CHANNEL)
    return mpub_to_topic(stage)


def mpub_to_topic(stage: Stage) -> list[Metric]:
    effort = stage.measure(stage.mpub_plans())
    return effort.publishing()


def drain(stage: Stage) -> list[Metric]:
    stage.create(_CHANNEL)
    stage.measure(stage.mpub_plans())
    effort = stage.measure([stage.consume_plan(_CHANNEL)])
    return effort.delivering()


def through(stage: Stage) -> list[Metric]:
    effort = stage.measure([stage.consume_plan(_CHANNEL), *stage.mpub_plans()])
    return effort.delivering()


def replay(stage: Stage) -> list[Metric]:
    """Drain from a disk that the operating system remembers nothing of."""
    stage.create(_CHANNEL)
    stage.measure(stage.mpub_plans())
    stage.forget_files()
    effort = stage.measure([stage.consume_plan(_CHANNEL)])
    rate, *others = effort.delivering()
    return [rate, Metric("bodies", rate.value * frame.BODY_BYTES / 1e6, "MB/s", "higher"), *others]


def fanout(stage: Stage) -> list[Metric]:
    return _fanout(stage, channel_count=_FANOUT_CHANNELS)


def fanout_wide(stage: Stage) -> list[Metric]:
    return _fanout(stage, channel_count=_WIDE_FANOUT_CHANNELS)


def _fanout(stage: Stage, *, channel_count: int) -> list[Metric]:
    channels = [f"c{index}" for index in range(channel_count)]
    single = replace(stage, consumers=1)
    consumers = [single.consume_plan(*channels[first::_FANOUT_CONSUMERS]) for first in range(_FANOUT_CONSUMERS)]
    effort = stage.measure([*consumers, *stage.mpub_plans()])
    return effort.delivering()


def pub(stage: Stage) -> list[Metric]:
    return _lockstep(stage, connections=_FEW_PUBLISHERS)


def pub_many(stage: Stage) -> list[Metric]:
    return _lockstep(stage, connections=_MANY_PUBLISHERS)


def _lockstep(stage: Stage, *, connections: int) -> list[Metric]:
    stage.create(_CHANNEL)
    payload = frame.pub(stage.topic, frame.bodies(1)[0])
    plans = [
        LockstepPublish(
            address=stage.server.address,
            payload=payload,
            messages=messages,
            connections=connections // PUBLISHERS,
        )
        for messages in shares(stage.size.messages, PUBLISHERS)
    ]
    effort = stage.measure(plans)
    return effort.publishing()


def pub_pipelined(stage: Stage) -> list[Metric]:
    stage.create(_CHANNEL)
    payload = b"".join(frame.pub(stage.topic, body) for body in frame.bodies(_PUBS_PER_PAYLOAD))
    plans = [
        PipelinedPublish(
            address=stage.server.address,
            payload=payload,
            oks=_PUBS_PER_PAYLOAD,
            messages=_PUBS_PER_PAYLOAD,
            repeats=repeats,
        )
        for repeats in shares(-(-stage.size.messages // _PUBS_PER_PAYLOAD), PUBLISHERS)
    ]
    effort = stage.measure(plans)
    return effort.publishing()


def http_pub(stage: Stage) -> list[Metric]:
    target = f"/pub?topic={stage.topic}"
    return _posts(stage, target, frame.bodies(1)[0], messages=1, repeats=stage.size.messages)


def http_mpub(stage: Stage) -> list[Metric]:
    target, body = f"/mpub?topic={stage.topic}", http.lines(frame.bodies(frame.MESSAGES_PER_MPUB))
    return _posts(stage, target, body, messages=frame.MESSAGES_PER_MPUB, repeats=stage.batches)


def http_mpub_binary(stage: Stage) -> list[Metric]:
    target, body = f"/mpub?topic={stage.topic}&binary=true", frame.records(frame.bodies(frame.MESSAGES_PER_MPUB))
    return _posts(stage, target, body, messages=frame.MESSAGES_PER_MPUB, repeats=stage.batches)


def _posts(stage: Stage, target: str, body: bytes, *, messages: int, repeats: int) -> list[Metric]:
    stage.create(_CHANNEL)
    address = stage.http_address
    request = http.post(target, body, host="{}:{}".format(*address))
    plans = [
        LockstepPost(
            address=address,
            request=request,
            messages=messages,
            repeats=share,
            connections=_HTTP_PUBLISHERS // PUBLISHERS,
        )
        for share in shares(repeats, PUBLISHERS)
    ]
    effort = stage.measure(plans)
    return effort.publishing()


def latency(stage: Stage) -> list[Metric]:
    return _latency(stage, output_buffer_bytes=None)


def latency_unbuffered(stage: Stage) -> list[Metric]:
    return _latency(stage, output_buffer_bytes=-1)


def _latency(stage: Stage, *, output_buffer_bytes: int | None) -> list[Metric]:
    messages = int(stage.size.seconds * _LATENCY_RATE)
    consumer = replace(
        stage.consume_plan(_CHANNEL),
        messages=messages,
        connections=1,
        is_timed=True,
        output_buffer_bytes=output_buffer_bytes,
    )
    publisher = PacedPublish(address=stage.server.address, topic=stage.topic, messages=messages, rate=_LATENCY_RATE)
    plans: Sequence[Plan] = [consumer, publisher]
    effort = stage.measure(plans)
    latencies_ns = [latency_ns for tally in effort.tallies for latency_ns in tally.latencies_ns]
    first, last = (len(latencies_ns) * percent // 100 for percent in _LATENCY_COUNTED)
    latencies_ms = [latency_ns / 1e6 for latency_ns in latencies_ns[first:last]]
    return [
        Metric("p50", percentile(latencies_ms, 50), "ms", "lower"),
        Metric("p99", percentile(latencies_ms, 99), "ms", "lower"),
        Metric("max", max(latencies_ms), "ms", "lower"),
        *effort.cpu(effort.delivered),
    ]


def memory(stage: Stage) -> list[Metric]:
    stage.create(_CHANNEL)
    stage.settle()
    before_bytes = process.rss_bytes(stage.pid)
    effort = stage.measure(stage.mpub_plans())
    grown_bytes = process.rss_bytes(stage.pid) - before_bytes
    # Bytes per message are megabytes per million messages.
    per_million_mb = grown_bytes / effort.published
    return [Metric("RSS", per_million_mb, "MB/M msg", "lower"), *effort.cpu(effort.published)]


def idle(stage: Stage) -> list[Metric]:
    count = allow_open_files(stage.size.connections)
    stage.settle()
    before_bytes = process.rss_bytes(stage.pid)
    with Crowd(stage.server.address) as crowd:
        crowd.gather(count)
        stage.settle()
        grown_bytes = process.rss_bytes(stage.pid) - before_bytes
        before_s = process.cpu_s(stage.pid)
        crowd.linger(stage.size.seconds)
        spent_s = process.cpu_s(stage.pid) - before_s
    return [
        Metric("connections", count, "", "neither"),
        Metric("RSS", grown_bytes / count / 1000, "kB each", "lower"),
        Metric("nsqd CPU", spent_s / stage.size.seconds * 100, "%", "lower"),
    ]


def _in_memory(messages: int) -> tuple[str, ...]:
    return (f"--mem-queue-size={messages + _SPARE_QUEUE}",)


def _on_disk(_: int) -> tuple[str, ...]:
    return ("--mem-queue-size=0",)


def _by_default(_: int) -> tuple[str, ...]:
    return ()


_JOURNAL = ("--journal",)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A work: its name, what it is, its usual size, the flags nsqd needs for it, and what is done."""

    name: str
    summary: str
    size: Size
    run: Callable[[Stage], list[Metric]]
    flags: Callable[[int], tuple[str, ...]] = _in_memory
    own_flags: tuple[str, ...] = ()
    """Instead of those, for our nsqd: for works that only ours can do in that way."""


SCENARIOS = (
    Scenario(
        name="mpub",
        summary="MPUB of 200 x 200 B into memory, one channel",
        size=Size(messages=2_000_000),
        run=mpub,
    ),
    Scenario(
        name="mpub-topic",
        summary="the same into a topic without channels",
        size=Size(messages=2_000_000),
        run=mpub_to_topic,
    ),
    Scenario(
        name="drain",
        summary="consume a full channel, RDY 2500, FIN each",
        size=Size(messages=1_000_000),
        run=drain,
    ),
    Scenario(
        name="through",
        summary="MPUB and consume at once",
        size=Size(messages=1_000_000),
        run=through,
    ),
    Scenario(
        name="pub",
        summary="single PUBs, each waiting for its OK, 16 connections",
        size=Size(messages=200_000),
        run=pub,
    ),
    Scenario(
        name="pub-many",
        summary="the same with 64 connections",
        size=Size(messages=200_000),
        run=pub_many,
    ),
    Scenario(
        name="pub-pipelined",
        summary="single PUBs, not waiting, 2 connections",
        size=Size(messages=400_000),
        run=pub_pipelined,
    ),
    Scenario(
        name="http-pub",
        summary="POST /pub of 200 B, each waiting for its answer, 32 connections",
        size=Size(messages=200_000),
        run=http_pub,
    ),
    Scenario(
        name="http-mpub",
        summary="POST /mpub of 200 x 200 B as lines, 32 connections",
        size=Size(messages=2_000_000),
        run=http_mpub,
    ),
    Scenario(
        name="http-mpub-binary",
        summary="the same as records, binary=true",
        size=Size(messages=2_000_000),
        run=http_mpub_binary,
    ),
    Scenario(
        name="fanout",
        summary="MPUB and consume at once, 10 channels, delivered messages",
        size=Size(messages=100_000),
        run=fanout,
    ),
    Scenario(
        name="disk-in",
        summary="MPUB to disk, --mem-queue-size=0",
        size=Size(messages=200_000),
        run=mpub,
        flags=_on_disk,
    ),
    Scenario(
        name="disk-out",
        summary="consume a full channel from disk, --mem-queue-size=0",
        size=Size(messages=200_000),
        run=drain,
        flags=_on_disk,
    ),
    Scenario(
        name="journal-in",
        summary="MPUB to a journal, fsynced before each OK; the peer to disk without that",
        size=Size(messages=1_000_000),
        run=mpub,
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="journal-out",
        summary="consume a full channel of a journal; the peer from disk",
        size=Size(messages=1_000_000),
        run=drain,
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="journal-fanout",
        summary="MPUB to a journal and consume at once, 20 channels, delivered messages; the peer by disk",
        size=Size(messages=50_000),
        run=fanout_wide,
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="journal-replay",
        summary="consume a journal that is not in the page cache; the peer from its disk queue",
        size=Size(messages=1_000_000),
        run=replay,
        flags=_on_disk,
        own_flags=_JOURNAL,
    ),
    Scenario(
        name="overflow-in",
        summary="MPUB beyond the default memory queue, the rest to disk",
        size=Size(messages=200_000),
        run=mpub,
        flags=_by_default,
    ),
    Scenario(
        name="overflow-out",
        summary="consume a channel that overflowed to disk",
        size=Size(messages=200_000),
        run=drain,
        flags=_by_default,
    ),
    Scenario(
        name="latency",
        summary="publish to delivery at 5,000 PUB/s, RDY 2500",
        size=Size(seconds=10),
        run=latency,
        flags=_by_default,
    ),
    Scenario(
        name="latency-unbuffered",
        summary="the same, the consumer asking for no output buffer",
        size=Size(seconds=10),
        run=latency_unbuffered,
        flags=_by_default,
    ),
    Scenario(
        name="memory",
        summary="memory of queued 200 B messages, one channel",
        size=Size(messages=1_000_000),
        run=memory,
    ),
    Scenario(
        name="idle",
        summary="connections that only wait, over one heartbeat each",
        size=Size(seconds=30, connections=10_000),
        run=idle,
        flags=_by_default,
    ),
)
