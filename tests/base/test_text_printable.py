"""Nothing from outside can break out of its line."""

from __future__ import annotations

import pytest

from emberq.base.text import one_line, quoted


def test_ordinary_text_is_shown_as_it_is() -> None:
    assert one_line("TOPIC(grüße): \\n stays two characters") == "TOPIC(grüße): \\n stays two characters"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("a\r\tb", r"a\r\tb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("line\u2028separator", r"line\u2028separator"),
        ("\x00", r"\x00"),
        ("not utf-8: \udcff", r"not utf-8: \udcff"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_quotes_and_backslashes_inside_quotes_are_escaped() -> None:
    assert quoted('say "hi" \\ \n') == r'"say \"hi\" \\ \n"'
