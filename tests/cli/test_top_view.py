from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from emberq.cli.top_view import WIDE_COLUMNS, Choices, ScreenFrame, SortKey, draw_page, draw_screen
from emberq.cluster.survey import Rates
from tests.cli.cluster_look import row

NOW_NS = 1_700_000_000_000_000_000
LONG = "a_topic_name_that_is_as_long_as_a_name_may_be_which_is_a_lot.really"


def text_of(drawn: RenderableType, *, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(drawn)
    return [line.rstrip() for line in captured.get().splitlines()]


def screen(frame: ScreenFrame, choices: Choices, *, width: int = 80, height: int = 12) -> list[str]:
    return text_of(draw_screen(frame, choices, width=width, height=height), width=width)


def frame_of(*rows: object, **fields: object) -> ScreenFrame:
    return ScreenFrame(**({"taken_ns": NOW_NS, "nodes": ("a:1",), "topic_count": 1, "rows": rows} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [80, 120, WIDE_COLUMNS, 200])
@pytest.mark.parametrize("name", ["t", LONG])
def test_every_line_fits_and_the_screen_is_filled(width: int, name: str) -> None:
    rows = [row(name, name, depth=10**number, message_count=10**number) for number in range(15)]
    for sort in SortKey:
        lines = screen(frame_of(*rows, warnings=("w" * 300,)), Choices(sort=sort), width=width, height=24)
        assert len(lines) == 24
        assert max(map(len, lines)) <= width


def test_80_columns_show_the_essential_figures() -> None:
    figures = {"depth": 912, "in_flight_count": 20, "deferred_count": 7, "rates": Rates(602.4, 0.52)}
    lines = screen(frame_of(row("clicks", "archive", **figures, client_count=4)), Choices())
    assert lines[1].split() == ["TOPIC", "CHANNEL", "▼DEPTH", "IN-FLT", "DEFER", "IN/s", "OUT/s", "CLIENTS"]
    assert lines[2].split() == ["clicks", "archive", "912", "20", "7", "602", "0.5", "4"]


def test_a_narrow_screen_keeps_the_names_and_drops_figures() -> None:
    rows = frame_of(row("page_visits", "warehouse_loader", depth=912, client_count=4))
    for width, figures in ((60, ["▼DEPTH", "IN-FLT", "DEFER"]), (44, ["▼DEPTH"]), (36, [])):
        lines = screen(rows, Choices(), width=width)
        assert lines[1].split() == ["TOPIC", "CHANNEL", *figures]
        assert lines[2].split()[:2] == ["page_visits", "warehouse_loader"]
    by_clients = screen(rows, Choices(sort=SortKey.CLIENTS), width=46)
    assert by_clients[1].split() == ["TOPIC", "CHANNEL", "▼CLIENTS"]


def test_200_columns_show_all_figures_in_full() -> None:
    lines = screen(frame_of(row(depth=1_234_567, backend_depth=34, requeue_count=5)), Choices(), width=200)
    assert "ON DISK" in lines[1]
    assert lines[2].split()[2:4] == ["1,234,567", "34"]


@pytest.mark.parametrize(
    ("depth", "shown"), [(0, "0"), (99_999, "99,999"), (100_000, "100k"), (1_250_000, "1.2M"), (3 * 10**9, "3.0G")]
)
def test_a_narrow_column_writes_large_numbers_short(depth: int, shown: str) -> None:
    assert screen(frame_of(row(depth=depth)), Choices())[2].split()[2] == shown


def test_rates_that_are_not_known_yet_are_not_zero() -> None:
    assert screen(frame_of(row(rates=None)), Choices())[2].split()[5:7] == ["–", "–"]
    assert screen(frame_of(row(rates=Rates(0.0, 0.0))), Choices())[2].split()[5:7] == ["0", "0"]


def test_the_title_sums_up() -> None:
    frame = frame_of(row(), row("t", "d"), nodes=("a:1", "b:1"), came_per_s=1204.4, left_per_s=0.4)
    (title, *_) = screen(frame, Choices())
    assert title.startswith("emberq top  2 nsqds · 1 topic · 2 channels · in 1,204/s · out 0.4/s ")


def test_a_paused_channel_is_marked() -> None:
    assert screen(frame_of(row("t", "c", paused=True)), Choices())[2].startswith("P t ")


def test_names_are_never_markup_nor_commands_to_the_terminal() -> None:
    line = screen(frame_of(row("[red]x", "\x1b[2J")), Choices())[2]
    assert "[red]x" in line
    assert "\\x1b[2J" in line


def test_rows_that_do_not_fit_are_reached_by_scrolling() -> None:
    frame = frame_of(*(row(f"t{number:02}") for number in range(20)))
    choices = Choices(sort=SortKey.NAME)
    assert [line.split()[0] for line in screen(frame, choices)[2:-1]] == [f"t{number:02}" for number in range(9)]
    choices.press("\x1b[6~")
    assert screen(frame, choices)[2].split()[0] == "t09"
    choices.first_row = 1000
    assert [line.split()[0] for line in screen(frame, choices)[2:-1]][-1] == "t19"


def test_warnings_stand_above_the_table_and_many_are_summed_up() -> None:
    lines = screen(frame_of(row(), warnings=tuple(f"node {number}" for number in range(5))), Choices())
    assert lines[1:4] == ["WARNING: node 0", "WARNING: node 1", "WARNING: and 3 more that did not answer"]


def test_a_cluster_that_does_not_answer_is_told_above_its_last_figures() -> None:
    lines = screen(frame_of(row("t"), failure="failed to query any nsqd:\nrefused"), Choices())
    assert lines[1].startswith("no answer (figures of ")
    assert "): failed to query any nsqd:\\nrefused" in lines[1]
    assert lines[3].split()[0] == "t"


def test_before_the_first_answer_there_is_an_empty_table() -> None:
    lines = screen(ScreenFrame(), Choices())
    assert lines[0] == "emberq top"
    assert lines[-1].startswith("q quit  / filter  r reverse  sort name depth")


def test_the_arrow_shows_what_is_sorted_by_and_which_way() -> None:
    assert "▼DEPTH" in screen(frame_of(), Choices())[1]
    assert "▲DEPTH" in screen(frame_of(), Choices(is_reversed=True))[1]
    assert "▲TOPIC" in screen(frame_of(), Choices(sort=SortKey.NAME))[1]


def test_a_filter_is_shown_while_typed_and_after() -> None:
    choices = Choices(pattern="abc", typing=True)
    assert screen(frame_of(row()), choices)[-1].startswith("filter: abc█")
    choices.typing = False
    assert screen(frame_of(row()), choices)[-1].startswith("filter: abc  Esc clear  q quit")


def test_a_page_has_all_rows_and_no_keys() -> None:
    frame = frame_of(*(row(f"t{number}") for number in range(100)))
    lines = text_of(draw_page(frame, Choices(), width=80), width=80)
    assert len(lines) == 2 + 100
    assert not any("q quit" in line for line in lines)
