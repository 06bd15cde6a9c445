from __future__ import annotations

import pytest

from emberq.cli.top_view import MAX_FILTER_CHARS, Choices, KeyOutcome, SortKey, read_keys
from tests.cli.cluster_look import row


def typed(choices: Choices, text: str) -> KeyOutcome:
    """Press the keys that a terminal sends as `text`; what the last one asks for."""
    return [choices.press(key) for key in read_keys(text)][-1]


def test_keys_that_arrive_together_are_told_apart() -> None:
    assert read_keys("q\x1b[A\x1b[5~ü\x1bOB\x1b") == ["q", "\x1b[A", "\x1b[5~", "ü", "\x1bOB", "\x1b"]


@pytest.mark.parametrize("key", ["q", "Q", "\x03", "\x04"])
def test_quitting(key: str) -> None:
    assert typed(Choices(), key) is KeyOutcome.QUIT


@pytest.mark.parametrize("sort", list(SortKey))
def test_each_way_to_sort_has_its_key_which_goes_back_to_the_top(sort: SortKey) -> None:
    choices = Choices(first_row=5)
    assert typed(choices, sort.key) is KeyOutcome.REDRAW
    assert (choices.sort, choices.first_row) == (sort, 0)


def test_the_order_can_be_reversed_and_reversed_again() -> None:
    choices = Choices()
    typed(choices, "r")
    assert choices.is_reversed
    typed(choices, "r")
    assert not choices.is_reversed


def test_a_filter_is_typed_and_kept() -> None:
    choices = Choices()
    assert typed(choices, "/qrx\x7f") is KeyOutcome.REDRAW
    assert (choices.typing, choices.pattern) == (True, "qr")
    typed(choices, "\r")
    assert (choices.typing, choices.pattern) == (False, "qr")
    assert [each.topic for each in choices.of([row("qrs"), row("abc")])] == ["qrs"]


def test_escape_clears_the_filter_while_typing_and_after() -> None:
    choices = Choices()
    typed(choices, "/abc\x1b")
    assert (choices.typing, choices.pattern) == (False, "")
    typed(choices, "/abc\r\x1b")
    assert choices.pattern == ""


def test_a_filter_has_a_longest_length_and_no_unprintable_characters() -> None:
    choices = Choices()
    typed(choices, "/" + "x" * 1000)
    assert len(choices.pattern) == MAX_FILTER_CHARS
    choices = Choices()
    assert typed(choices, "/\x01") is KeyOutcome.NOTHING
    assert choices.pattern == ""


def test_ctrl_c_quits_while_typing_too() -> None:
    assert typed(Choices(), "/abc\x03") is KeyOutcome.QUIT


def test_scrolling_by_rows_and_pages_stops_at_the_top() -> None:
    choices = Choices(page_rows=10)
    typed(choices, "\x1b[B\x1b[6~j")
    assert choices.first_row == 12
    typed(choices, "\x1b[5~k")
    assert choices.first_row == 1
    typed(choices, "\x1b[A\x1b[A")
    assert choices.first_row == 0
    typed(choices, "\x1b[6~g")
    assert choices.first_row == 0


def test_other_keys_do_nothing() -> None:
    assert typed(Choices(), "x") is KeyOutcome.NOTHING
