from __future__ import annotations

from typing import Any

import pytest

from emberq.cli.top_view import SortKey, TopRow, arranged, rows_of
from emberq.cluster.survey import Rates
from tests.cli.cluster_look import row
from tests.support.cluster_rig import channel_entry, seen, topic_entry


def names(rows: list[TopRow]) -> list[str]:
    return [f"{each.topic}/{each.channel}" for each in rows]


def test_every_channel_has_a_row_with_its_figures_and_rates() -> None:
    channel = channel_entry("c", depth=4, backend_depth=1, in_flight_count=2, deferred_count=3, client_count=5)
    before = seen(a=[topic_entry("t", channel)], b=[topic_entry("t", channel)])
    grown = channel | {"message_count": 3, "depth": 2}
    (found,) = rows_of(seen(before=before, at_s=3, a=[topic_entry("t", grown)], b=[topic_entry("t", channel)]))
    assert (found.topic, found.channel, found.total.node_count) == ("t", "c", 2)
    total = found.total
    assert (total.depth, total.in_flight_count, total.deferred_count, total.client_count) == (6, 4, 6, 10)
    assert (found.came_per_s, found.left_per_s) == (1.5, 2.5)


@pytest.mark.parametrize("figures", [{"depth": 1}, {"paused": True}])
def test_a_topic_with_channels_has_a_row_only_if_it_has_something_to_say(figures: dict[str, object]) -> None:
    assert names(list(rows_of(seen(a=[topic_entry("t", channel_entry("c"))])))) == ["t/c"]
    assert names(list(rows_of(seen(a=[topic_entry("t", channel_entry("c"), **figures)])))) == ["t/", "t/c"]


def test_a_topic_without_channels_has_a_row() -> None:
    (found,) = rows_of(seen(a=[topic_entry("t", message_count=3)]))
    assert (found.channel, found.total.message_count, found.came_per_s) == ("", 3, None)


@pytest.mark.parametrize(
    ("sort", "some", "more"),
    [
        (SortKey.DEPTH, {"depth": 2}, {"depth": 3}),
        (SortKey.IN_FLIGHT, {"in_flight_count": 2}, {"in_flight_count": 3}),
        (SortKey.DEFERRED, {"deferred_count": 2}, {"deferred_count": 3}),
        (SortKey.CAME, {"rates": Rates(2, 0)}, {"rates": Rates(3, 0)}),
        (SortKey.LEFT, {"rates": Rates(0, 2)}, {"rates": Rates(0, 3)}),
        (SortKey.CLIENTS, {"client_count": 2}, {"client_count": 3}),
    ],
)
def test_the_largest_figure_comes_first_and_equals_by_name(
    sort: SortKey, some: dict[str, Any], more: dict[str, Any]
) -> None:
    rows = [row("b"), row("a", rates=None), row("c", **some), row("d", **more)]
    assert names(arranged(rows, sort=sort, is_reversed=False, pattern="")) == ["d/c", "c/c", "a/c", "b/c"]
    assert names(arranged(rows, sort=sort, is_reversed=True, pattern="")) == ["a/c", "b/c", "c/c", "d/c"]


def test_names_are_sorted_by_topic_and_channel() -> None:
    rows = [row("b", "x"), row("a", "z"), row("a", "y")]
    assert names(arranged(rows, sort=SortKey.NAME, is_reversed=False, pattern="")) == ["a/y", "a/z", "b/x"]
    assert names(arranged(rows, sort=SortKey.NAME, is_reversed=True, pattern="")) == ["b/x", "a/z", "a/y"]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("", ["clicks/archive", "orders/mail"]),
        ("CLICK", ["clicks/archive"]),
        ("mail", ["orders/mail"]),
        ("c*", ["clicks/archive"]),
        ("order?", ["orders/mail"]),
        ("order", ["orders/mail"]),
        ("rder*", []),
    ],
)
def test_a_filter_is_a_part_of_a_name_or_a_pattern_for_all_of_it(pattern: str, matching: list[str]) -> None:
    rows = [row("orders", "mail"), row("clicks", "archive")]
    assert names(arranged(rows, sort=SortKey.NAME, is_reversed=False, pattern=pattern)) == matching


def test_every_way_to_sort_has_a_word_and_a_key_that_is_in_it() -> None:
    assert len({sort.key for sort in SortKey}) == len({sort.word for sort in SortKey}) == len(SortKey)
    assert all(sort.key in sort.word for sort in SortKey)
