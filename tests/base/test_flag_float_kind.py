"""Numbers with a fraction, as flags give them."""

from __future__ import annotations

import pytest

from emberq.base.flag import FLOAT


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), ("-0.5", -0.5), (".25", 0.25), ("2.", 2.0), ("1e-3", 0.001)])
def test_decimal_numbers_are_read(text: str, value: float) -> None:
    assert FLOAT.from_text(text) == value


@pytest.mark.parametrize("text", ["", ".", "x", "nan", "inf", " 1", "1_0", "0x1", "٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="parse error"):
        FLOAT.from_text(text)


def test_a_number_beyond_all_floats_is_out_of_range() -> None:
    with pytest.raises(ValueError, match="value out of range"):
        FLOAT.from_text("1e999")


def test_defaults_are_shown_without_needless_digits() -> None:
    assert (FLOAT.to_text(1.0), FLOAT.to_text(0.25)) == ("1", "0.25")
