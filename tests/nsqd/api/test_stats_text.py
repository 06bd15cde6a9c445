"""Statistics as text, line by line."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import emberq
from emberq.broker.stats import ClientStats, LatencySummary, Percentile, TopicStats
from emberq.nsqd.api import stats
from emberq.nsqd.metrics import MemoryStats
from tests.nsqd.api.stats_sample import CHANNEL, CONSUMER, PRODUCER, REPORT, TOPIC, as_shown

WHOLE = """\
nsqd v{version} (built w/python{python})
start_time 2023-11-14T22:13:20Z
uptime 1m18s

Health: OK

Memory:
   heap_objects             \t3134
   heap_idle_bytes          \t0
   heap_in_use_bytes        \t0
   heap_released_bytes      \t0
   gc_pause_usec_100        \t0
   gc_pause_usec_99         \t0
   gc_pause_usec_95         \t0
   next_gc_bytes            \t0
   gc_total_runs            \t2

Topics:

   [orders         ] depth: 6     be-depth: 1     msgs: 42       e2e%: 
      [archive                  ] depth: 7     be-depth: 3     inflt: 2    def: 1    re-q: 4     timeout: 5     msgs: 19       e2e%: 2.5s, 1.5us
        [V2 worker.example:43210 agent/1.0] state: 3 inflt: 2    rdy: 2    fin: 9        re-q: 1        msgs: 12       connected: 1m18s

Producers:
   [V2 source.example: agent/1.0] msgs: 42       topics: orders=40, visits=2 connected: 18s
"""  # noqa: E501, W291


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """The time zone of the machine."""
    monkeypatch.setenv("TZ", getattr(request, "param", "UTC"))
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def rendered(*, topics: Iterable[TopicStats] | None = (TOPIC,), **changes: Any) -> list[str]:
    shown = None if topics is None else [as_shown(topic) for topic in topics]
    return "".join(stats.text_pieces(replace(REPORT, topics=shown, **changes))).splitlines()


def client_line(**changes: Any) -> str:
    channel = replace(CHANNEL, clients=(replace(CONSUMER, **changes),))
    return rendered(topics=(replace(TOPIC, channels=(channel,)),))[-4]


@pytest.mark.usefixtures("zone")
def test_everything_has_its_place() -> None:
    expected = WHOLE.format(version=emberq.NSQ_VERSION, python=platform.python_version())
    assert "".join(stats.text_pieces(REPORT)) == expected


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("zone", ["UTC-5:30"], indirect=True)
def test_the_start_is_told_in_the_zone_of_the_machine() -> None:
    assert rendered()[1] == "start_time 2023-11-15T03:43:20+05:30"


def test_an_idle_node_has_little_to_say() -> None:
    shown = rendered(topics=(), memory=None, producers=())
    assert shown[3:] == ["", "Health: OK", "", "Topics: None", "", "Producers: None"]


def test_a_topic_that_was_not_found_is_no_topic() -> None:
    assert "Topics: None" in rendered(topics=None)


def test_ill_health_is_shown() -> None:
    assert "Health: NOK - disk full" in rendered(health="NOK - disk full")


def test_paused_topics_and_channels_are_marked() -> None:
    shown = rendered(topics=(replace(TOPIC, paused=True, channels=(replace(CHANNEL, paused=True),)),))
    assert any(line.startswith("*P [orders         ]") for line in shown)
    assert any(line.startswith("   *P [archive                  ]") for line in shown)


def test_topics_are_set_apart_by_blank_lines() -> None:
    bare = replace(TOPIC, channels=())
    shown = rendered(topics=(bare, replace(bare, name="visits")), producers=())
    start = shown.index("Topics:")
    assert [line[:9] for line in shown[start:]] == ["Topics:", "", "   [order", "", "   [visit", "", "Producers"]


def test_short_identities_are_padded() -> None:
    shown = client_line(hostname="h", remote_address="1.2.3.4:5", user_agent="a")
    assert shown.startswith("        [V2 h:5 a                ] state: 3 ")


def test_the_port_of_an_ipv6_address_is_its_last_part() -> None:
    assert "[V2 h:5 a " in client_line(hostname="h", remote_address="[::1]:5", user_agent="a")


def test_what_a_client_says_of_itself_stays_on_its_line() -> None:
    assert "forged\\nHealth: OK" in client_line(user_agent="forged\nHealth: OK")


def test_clients_that_were_not_asked_for_are_not_shown() -> None:
    assert not any("[V2" in line for line in rendered(shows_clients=False, producers=()))


def test_a_producer_that_published_nothing_here_is_shown_like_a_consumer() -> None:
    quiet = replace(PRODUCER, pub_counts=())
    assert rendered(producers=(quiet,))[-1] == (
        "   [V2 source.example: agent/1.0] state: 0 inflt: 0    rdy: 0    fin: 0        re-q: 0        msgs: 0        "
        "connected: 18s"
    )


def test_a_clock_that_went_back_makes_no_negative_times() -> None:
    shown = rendered(now_s=REPORT.start_time_s - 10, producers=(ClientStats(connect_ts=REPORT.start_time_s),))
    assert shown[2] == "uptime 0s"
    assert shown[-1].endswith("connected: 0s")


@pytest.mark.parametrize(
    ("value_ns", "shown"),
    [
        (0, "0.0ns"),
        (1_000, "1000.0ns"),
        (1_001, "1.0us"),
        (1_500_000, "1.5ms"),
        (1_000_000_000, "1000.0ms"),
        (90_000_000_000, "90.0s"),
    ],
)
def test_latencies_have_one_decimal_and_a_unit(value_ns: int, shown: str) -> None:
    topic = replace(TOPIC, channels=(), e2e=LatencySummary(1, (Percentile(0.5, value_ns),)))
    assert rendered(topics=(topic,), producers=())[-3].endswith(f"e2e%: {shown}")


def test_every_fact_about_memory_is_shown() -> None:
    shown = rendered()
    for name in MemoryStats.__dataclass_fields__:
        assert any(line.startswith(f"   {name} ") for line in shown)
