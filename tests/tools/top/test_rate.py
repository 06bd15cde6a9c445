from __future__ import annotations

from emberq.base.clock import NS_PER_SECOND
from emberq.tools.top.rate import RateMeter, Rates
from tests.cluster.rig import channel_entry, topic_entry
from tests.tools.top.cluster_look import seen

SECOND = NS_PER_SECOND


def test_one_look_gives_no_rates() -> None:
    assert RateMeter().measure(seen(a=[topic_entry("t")]), now_ns=SECOND) == {}


def test_a_rate_is_the_difference_of_counts_by_the_time_between() -> None:
    meter = RateMeter()
    meter.measure(seen(a=[topic_entry("t", channel_entry("c", message_count=5, depth=5), message_count=5)]), now_ns=0)
    channel = channel_entry("c", message_count=25, depth=8, in_flight_count=1, deferred_count=2)
    rates = meter.measure(seen(a=[topic_entry("t", channel, message_count=25)]), now_ns=2 * SECOND)
    assert rates == {("t", ""): Rates(10.0, 10.0), ("t", "c"): Rates(10.0, 7.0)}


def test_rates_of_several_nodes_are_added_up() -> None:
    meter = RateMeter()
    meter.measure(seen(a=[topic_entry("t")], b=[topic_entry("t")]), now_ns=0)
    grown = seen(a=[topic_entry("t", message_count=3)], b=[topic_entry("t", message_count=4)])
    assert meter.measure(grown, now_ns=SECOND) == {("t", ""): Rates(7.0, 7.0)}


def test_a_node_that_joins_or_restarts_makes_no_leap() -> None:
    meter = RateMeter()
    meter.measure(seen(a=[topic_entry("t", message_count=10)], b=[topic_entry("t", message_count=900)]), now_ns=0)
    changed = seen(
        a=[topic_entry("t", message_count=15)],
        b=[topic_entry("t", message_count=2)],
        c=[topic_entry("t", message_count=5_000)],
    )
    assert meter.measure(changed, now_ns=SECOND) == {("t", ""): Rates(5.0, 5.0)}


def test_what_is_new_has_no_rate_yet() -> None:
    meter = RateMeter()
    meter.measure(seen(a=[topic_entry("t")]), now_ns=0)
    rates = meter.measure(seen(a=[topic_entry("t"), topic_entry("new", message_count=9)]), now_ns=SECOND)
    assert ("new", "") not in rates


def test_a_rate_is_never_negative() -> None:
    meter = RateMeter()
    meter.measure(seen(a=[topic_entry("t", channel_entry("c", message_count=5))]), now_ns=0)
    grown = seen(a=[topic_entry("t", channel_entry("c", message_count=5, depth=1))])
    assert meter.measure(grown, now_ns=SECOND)["t", "c"] == Rates(0.0, 0.0)
