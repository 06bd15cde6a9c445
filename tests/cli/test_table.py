"""Tables on a terminal: which columns are shown where there is little room."""

from __future__ import annotations

import pytest
from rich.console import Console

from emberq.cli.table import body_text, figure, fitting, name, table, text

COLUMNS = [name("TOPIC"), figure("DEPTH"), figure("CLIENTS"), name("CHANNEL"), text("BODY")]
ROWS = [("page_visits", "12", "3", "warehouse_loader", "x" * 200)]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (200, ["TOPIC", "DEPTH", "CLIENTS", "CHANNEL", "BODY"]),
        (60, ["TOPIC", "DEPTH", "CHANNEL", "BODY"]),
        (50, ["TOPIC", "CHANNEL", "BODY"]),
        (20, ["TOPIC", "CHANNEL", "BODY"]),
    ],
)
def test_names_are_kept_and_figures_left_out_from_the_right(width: int, shown: list[str]) -> None:
    assert [COLUMNS[number].title for number in fitting(COLUMNS, ROWS, width=width)] == shown


def test_names_are_whole_and_the_text_is_cut() -> None:
    console = Console(width=50)
    with console.capture() as captured:
        console.print(table(COLUMNS, ROWS, width=50))
    titles, row = captured.get().splitlines()
    assert titles.split() == ["TOPIC", "CHANNEL", "BODY"]
    assert row.split()[:2] == ["page_visits", "warehouse_loader"]
    assert row.endswith("…")


def test_a_body_is_one_line_without_escapes() -> None:
    assert body_text(b"a\nb\x1b[1m").plain == "a\\nb\\x1b[1m"
    assert body_text(b"\xff\x00").plain == "\\xff\\x00"
