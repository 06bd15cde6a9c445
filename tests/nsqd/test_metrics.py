"""The answer to GET /metrics, read with Prometheus' own parser."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import emberq
from emberq.base.clock import NS_PER_MS
from emberq.base.daemon import Lag
from emberq.base.metrics import PIECE_SAMPLES, ProcessStats
from emberq.broker.stats import ChannelStats, ClientStats, JournalStats, LatencySummary, Percentile, TopicStats
from emberq.nsqd.health import DiskUsage
from emberq.nsqd.metrics import FAMILIES, MemoryStats, Scrape, pieces, read_system, read_topics
from tests.broker.rig import Rig

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs/OPERATIONS.md"

LATENCY = LatencySummary(12, (Percentile(0.99, 250 * NS_PER_MS), Percentile(0.5, NS_PER_MS)))
CONSUMERS = (
    ClientStats(ready_count=10, in_flight_count=1, message_count=5, finish_count=3, requeue_count=1, tls=True),
    ClientStats(ready_count=20, in_flight_count=2, message_count=7, finish_count=4, tls=True, snappy=True),
    ClientStats(sample_rate=10, deflate=True),
)
CHANNEL = ChannelStats(
    name="billing",
    depth=17,
    backend_depth=4,
    in_flight_count=5,
    deferred_count=6,
    message_count=1000,
    requeue_count=8,
    timeout_count=9,
    paused=True,
    zone_local_msg_count=1,
    region_local_msg_count=2,
    global_msg_count=3,
    clients=CONSUMERS,
    e2e=LATENCY,
    dead_letter_count=13,
    redriven_count=14,
    dropped_count=15,
    expired_count=16,
    oldest_age_ns=2500 * NS_PER_MS,
)
TOPIC = TopicStats(
    name="orders",
    channels=(CHANNEL,),
    depth=11,
    backend_depth=12,
    message_count=1000,
    message_bytes=200_000,
    paused=False,
    refused_count=21,
    dropped_count=22,
    expired_count=23,
    e2e=LATENCY,
    journal=JournalStats(
        first_offset=100, next_offset=1100, synced_offset=1090, size_bytes=300_000, lag=17, overtaken_count=3
    ),
)
SCRAPE = Scrape(
    start_time_s=1_700_000_000,
    is_healthy=True,
    refuses_publishing=False,
    is_draining=False,
    topics=(TOPIC,),
    producers=(
        ClientStats(pub_counts=(("orders", 600), ("audit", 1))),
        ClientStats(pub_counts=(("orders", 400),)),
    ),
    tcp_connection_count=5,
    http_connection_count=2,
    memory=MemoryStats(
        heap_objects=1_000,
        heap_idle_bytes=1,
        heap_in_use_bytes=50_000_000,
        heap_released_bytes=1_000_000,
        gc_pause_usec_100=3_000,
        gc_pause_usec_99=2_000,
        gc_pause_usec_95=1_000,
        gc_total_runs=42,
    ),
    lag=Lag(last_ns=NS_PER_MS, recent_max_ns=20 * NS_PER_MS, max_ns=300 * NS_PER_MS),
    min_free_bytes=67_108_864,
)
DISK = DiskUsage(free_bytes=10**9, total_bytes=10**10, data_bytes=123_456)
PROCESS = ProcessStats(cpu_seconds=1.5, resident_bytes=60_000_000, open_file_count=30, max_open_file_count=1024)


def render(scrape: Scrape, *, disk: DiskUsage | None, process: ProcessStats) -> bytes:
    return "".join(pieces(scrape, disk=disk, process=process)).encode()


def expose(scrape: Scrape, *, data_path: Path) -> bytes:
    disk, process = read_system(data_path)
    return render(scrape, disk=disk, process=process)


Labels = frozenset[tuple[str, str]]


def parse(text: bytes) -> dict[tuple[str, Labels], float]:
    """Every sample, by name and labels; none may come twice."""
    samples: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return samples


def values(name: str, scrape: Scrape = SCRAPE) -> dict[Labels, float]:
    samples = parse(render(scrape, disk=DISK, process=PROCESS))
    return {labels: value for (sample_name, labels), value in samples.items() if sample_name == name}


def labels(**expected: str) -> Labels:
    return frozenset(expected.items())


def test_every_family_is_understood_with_its_type_and_meaning() -> None:
    parsed = list(text_string_to_metric_families(render(SCRAPE, disk=DISK, process=PROCESS).decode()))
    assert [(family.name, family.type, family.documentation) for family in parsed] == [
        (family.name.removesuffix("_total"), family.kind, family.meaning) for family in FAMILIES
    ]
    assert all(family.samples for family in parsed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nsqd_topic_channels", 1),
        ("nsqd_topic_depth", 11),
        ("nsqd_topic_backend_depth", 12),
        ("nsqd_topic_messages_total", 1000),
        ("nsqd_topic_message_bytes_total", 200_000),
        ("nsqd_topic_refused_total", 21),
        ("nsqd_topic_dropped_total", 22),
        ("nsqd_topic_expired_total", 23),
        ("nsqd_topic_paused", 0),
        ("nsqd_topic_e2e_latency_messages", 12),
        ("nsqd_topic_journal_bytes", 300_000),
        ("nsqd_topic_journal_first_offset", 100),
        ("nsqd_topic_journal_next_offset", 1100),
        ("nsqd_topic_journal_synced_offset", 1090),
        ("nsqd_topic_journal_overtaken_messages_total", 3),
        ("nsqd_topic_journal_lag", 17),
    ],
)
def test_a_topic_has_one_series_for_each_number_in_stats(name: str, value: float) -> None:
    assert values(name) == {labels(topic="orders"): value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nsqd_channel_depth", 17),
        ("nsqd_channel_backend_depth", 4),
        ("nsqd_channel_in_flight", 5),
        ("nsqd_channel_deferred", 6),
        ("nsqd_channel_messages_total", 1000),
        ("nsqd_channel_requeued_total", 8),
        ("nsqd_channel_timed_out_total", 9),
        ("nsqd_channel_dead_letters_total", 13),
        ("nsqd_channel_redriven_total", 14),
        ("nsqd_channel_dropped_total", 15),
        ("nsqd_channel_expired_total", 16),
        ("nsqd_channel_oldest_message_age_seconds", 2.5),
        ("nsqd_channel_paused", 1),
        ("nsqd_channel_clients", 3),
        ("nsqd_channel_client_ready", 30),
        ("nsqd_channel_client_in_flight", 3),
        ("nsqd_channel_client_messages", 12),
        ("nsqd_channel_client_finished", 7),
        ("nsqd_channel_client_requeued", 1),
        ("nsqd_channel_e2e_latency_messages", 12),
    ],
)
def test_a_channel_has_one_series_for_each_number_with_its_clients_summed_up(name: str, value: float) -> None:
    assert values(name) == {labels(topic="orders", channel="billing"): value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nsqd_start_time_seconds", 1_700_000_000),
        ("nsqd_healthy", 1),
        ("nsqd_publishing_refused", 0),
        ("nsqd_draining", 0),
        ("nsqd_producers", 2),
        ("nsqd_loop_lag_seconds", 0.001),
        ("nsqd_loop_lag_recent_max_seconds", 0.02),
        ("nsqd_loop_lag_max_seconds", 0.3),
        ("nsqd_disk_free_bytes", 10**9),
        ("nsqd_disk_size_bytes", 10**10),
        ("nsqd_disk_min_free_bytes", 67_108_864),
        ("nsqd_data_bytes", 123_456),
        ("nsqd_memory_objects", 1_000),
        ("nsqd_memory_in_use_bytes", 50_000_000),
        ("nsqd_memory_released_bytes", 1_000_000),
        ("nsqd_gc_runs_total", 42),
        ("process_cpu_seconds_total", 1.5),
        ("process_resident_memory_bytes", 60_000_000),
        ("process_open_fds", 30),
        ("process_max_fds", 1024),
    ],
)
def test_the_node_has_one_series_for_each_number(name: str, value: float) -> None:
    assert values(name) == {labels(): value}


def test_versions_are_labels_of_a_constant() -> None:
    ((version_labels, value),) = values("nsqd_info").items()
    assert value == 1
    assert dict(version_labels)["version"] == emberq.NSQ_VERSION
    assert dict(version_labels)["emberq_version"] == emberq.__version__


def test_what_is_split_up_further_has_a_label_for_it() -> None:
    channel = {"topic": "orders", "channel": "billing"}
    assert values("nsqd_connections") == {labels(protocol="tcp"): 5, labels(protocol="http"): 2}
    assert values("nsqd_producer_messages") == {labels(topic="audit"): 1, labels(topic="orders"): 1000}
    assert values("nsqd_channel_delivered_from_memory_total") == {
        labels(**channel, locality="zone"): 1,
        labels(**channel, locality="region"): 2,
        labels(**channel, locality="global"): 3,
    }
    assert values("nsqd_channel_client_features") == {
        labels(**channel, feature="tls"): 2,
        labels(**channel, feature="snappy"): 1,
        labels(**channel, feature="deflate"): 1,
        labels(**channel, feature="sampling"): 1,
    }
    assert values("nsqd_gc_pause_seconds") == {
        labels(quantile="1"): 0.003,
        labels(quantile="0.99"): 0.002,
        labels(quantile="0.95"): 0.001,
    }


def test_latencies_are_seconds_by_quantile() -> None:
    topic, channel = {"topic": "orders"}, {"topic": "orders", "channel": "billing"}
    expected = {"0.99": 0.25, "0.5": 0.001}
    assert values("nsqd_topic_e2e_latency_seconds") == {
        labels(**topic, quantile=quantile): value for quantile, value in expected.items()
    }
    assert values("nsqd_channel_e2e_latency_seconds") == {
        labels(**channel, quantile=quantile): value for quantile, value in expected.items()
    }


def test_a_latency_of_no_messages_is_left_out() -> None:
    topic = replace(TOPIC, e2e=LatencySummary(0, (Percentile(0.99, 0),)))
    scrape = replace(SCRAPE, topics=(topic,))
    assert values("nsqd_topic_e2e_latency_seconds", scrape) == {}
    assert values("nsqd_topic_e2e_latency_messages", scrape) == {labels(topic="orders"): 0}


def test_an_nsqd_in_trouble_says_so() -> None:
    scrape = replace(SCRAPE, is_healthy=False, refuses_publishing=True)
    assert values("nsqd_healthy", scrape) == {labels(): 0}
    assert values("nsqd_publishing_refused", scrape) == {labels(): 1}


def test_any_name_comes_through_as_it_is() -> None:
    name = 'a"b\\c\nd}é#ephemeral'
    topic = replace(TOPIC, name=name, channels=(replace(CHANNEL, name=name),))
    scrape = replace(SCRAPE, topics=(topic,))
    assert values("nsqd_topic_depth", scrape) == {labels(topic=name): 11}
    assert values("nsqd_channel_depth", scrape) == {labels(topic=name, channel=name): 17}


def test_what_cannot_be_measured_is_left_out() -> None:
    process = replace(PROCESS, open_file_count=None)
    names = {name for name, _ in parse(render(SCRAPE, disk=None, process=process))}
    assert not names & {"nsqd_disk_free_bytes", "nsqd_disk_size_bytes", "nsqd_data_bytes", "process_open_fds"}
    assert {"nsqd_disk_min_free_bytes", "process_max_fds"} <= names


def test_many_topics_have_a_series_each() -> None:
    topics = tuple(replace(TOPIC, name=f"t{number}", depth=number) for number in range(100))
    scrape = replace(SCRAPE, topics=topics)
    assert values("nsqd_topic_depth", scrape) == {labels(topic=f"t{number}"): number for number in range(100)}


def test_exposing_reads_the_data_folder_and_the_process(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(b"x" * 100)
    samples = parse(expose(SCRAPE, data_path=tmp_path))
    assert samples["nsqd_data_bytes", labels()] == 100
    assert samples["nsqd_disk_free_bytes", labels()] > 0
    assert samples["process_resident_memory_bytes", labels()] > 1_000_000


def test_exposing_does_without_a_folder_that_is_gone(tmp_path: Path) -> None:
    samples = parse(expose(SCRAPE, data_path=tmp_path / "gone"))
    assert ("nsqd_data_bytes", labels()) not in samples
    assert samples["nsqd_topic_depth", labels(topic="orders")] == 11


# Reading in steps.


def steps_of(reading: Generator[None, None, tuple[TopicStats, ...]]) -> tuple[int, tuple[TopicStats, ...]]:
    """How many there were, and what was read."""
    count = 0
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_topics_are_read_in_steps_of_a_channel_or_a_client(rig: Rig) -> None:
    for _ in range(30):
        rig.consumer()
    for number in range(20):
        rig.channel(topic=f"u{number}")
    count, topics = steps_of(read_topics(rig.broker))
    assert topics == rig.broker.snapshot()
    assert count >= 30 + 20


def test_what_is_deleted_while_topics_are_read_is_left_out(rig: Rig) -> None:
    rig.channel("c", topic="a")
    rig.channel("d", topic="a")
    rig.channel(topic="b")
    reading = read_topics(rig.broker)
    next(reading)
    rig.topic("a").delete_channel("d")
    rig.broker.delete_topic("b")
    assert steps_of(reading)[1] == rig.broker.snapshot()


def test_the_text_is_made_in_small_pieces() -> None:
    channel = replace(CHANNEL, clients=CONSUMERS * 100)
    topics = tuple(replace(TOPIC, name=f"t{number}", channels=(channel,)) for number in range(100))
    made = list(pieces(replace(SCRAPE, topics=topics), disk=DISK, process=PROCESS))
    assert max(piece.count("\n") for piece in made) <= PIECE_SAMPLES
    assert len(made) > len(topics) * len(channel.clients)
    assert values("nsqd_channel_client_ready", replace(SCRAPE, topics=topics[:1])) == {
        labels(topic="t0", channel="billing"): 100 * 30
    }


# What is built on these names.

EXPORTED = {family.name for family in FAMILIES}


def test_names_keep_to_the_conventions_of_prometheus() -> None:
    assert len(EXPORTED) == len(FAMILIES)
    for family in FAMILIES:
        assert re.fullmatch(r"(nsqd|process)_[a-z0-9_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")


def test_the_manual_lists_every_metric_and_no_other() -> None:
    listed = re.findall(r"^\| `((?:nsqd|process)_[a-z0-9_]+)", MANUAL.read_text(), re.MULTILINE)
    assert listed == [family.name for family in FAMILIES]
