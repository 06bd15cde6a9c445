"""Each kind of value is read from a flag's text and from TOML by NSQ's rules."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from emberq.base.flag import (
    BOOLEAN,
    DURATION,
    FLOATS,
    INTEGER,
    LOG_LEVEL,
    SettingError,
    Strings,
    Text,
    ValueKind,
    Words,
)
from emberq.base.log import LogLevel

TEXT = Text()
STRINGS = Strings()
COLOR = Words("color", {"red": 1, "green": 2}, aliases={"": 1}, refusal="no color {}")
SWITCH = Words("switch", {"true": "on", "false": "off", "auto": "auto"}, stands_alone=True)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (TEXT, "", ""),
        (TEXT, " as it is ", " as it is "),
        *((BOOLEAN, word, True) for word in ("1", "t", "T", "TRUE", "true", "True")),
        *((BOOLEAN, word, False) for word in ("0", "f", "F", "FALSE", "false", "False")),
        (INTEGER, "10000", 10_000),
        (INTEGER, "-1", -1),
        (INTEGER, "+1", 1),
        (INTEGER, "0x1F", 31),
        (INTEGER, "0b11", 3),
        (INTEGER, "1_000", 1_000),
        (INTEGER, "-9223372036854775808", -(1 << 63)),
        (DURATION, "1h15m30.5s", 4_530_500_000_000),
        (STRINGS, "a:1,b:2", ("a:1,b:2",)),
        (FLOATS, "0.99", (0.99,)),
        (FLOATS, "0.99, 0.5,1", (0.99, 0.5, 1.0)),
        (LOG_LEVEL, "warn", LogLevel.WARN),
        (LOG_LEVEL, "DEBUG", LogLevel.DEBUG),
        (COLOR, "Green", 2),
        (COLOR, "", 1),
        (SWITCH, "auto", "auto"),
    ],
)
def test_the_text_of_a_flag_is_read(kind: ValueKind[Any], text: str, value: object) -> None:
    assert kind.from_text(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        (BOOLEAN, "yes", "parse error"),
        (BOOLEAN, "tRUE", "parse error"),
        (INTEGER, "1.5", "parse error"),
        (INTEGER, " 1", "parse error"),
        (INTEGER, "0x", "parse error"),
        (INTEGER, "010", "parse error"),
        (INTEGER, "٣", "parse error"),
        (INTEGER, "-9223372036854775809", "value out of range"),
        (DURATION, "5", "parse error"),
        (DURATION, "3000000h", "parse error"),
        (LOG_LEVEL, "warning", "must be one of debug, info, warn, error, fatal"),
        (COLOR, "blue", 'no color "blue"'),
        (SWITCH, "maybe", "must be one of true, false, auto"),
    ],
)
def test_a_wrong_text_is_refused_with_the_reason(kind: ValueKind[Any], text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        kind.from_text(text)


def test_a_number_that_is_none_in_a_list_of_numbers_ends_the_program() -> None:
    with pytest.raises(SettingError, match=r"^Could not parse: x$"):
        FLOATS.from_text("0.5,x")


@pytest.mark.parametrize(
    ("kind", "toml", "value"),
    [
        (TEXT, "/data", "/data"),
        (BOOLEAN, True, True),
        (BOOLEAN, "false", False),
        (INTEGER, 5, 5),
        (INTEGER, "5", 5),
        (DURATION, "60s", 60_000_000_000),
        (DURATION, 250, 250_000_000),
        (STRINGS, ["a:1", "b:2"], ("a:1", "b:2")),
        (STRINGS, "a:1, b:2", ("a:1", "b:2")),
        (STRINGS, "", ()),
        (STRINGS, [], ()),
        (FLOATS, [0.99, 1], (0.99, 1.0)),
        (FLOATS, "0.99,0.5", (0.99, 0.5)),
        (LOG_LEVEL, "Debug", LogLevel.DEBUG),
        (SWITCH, True, "on"),
        (SWITCH, False, "off"),
        (SWITCH, "auto", "auto"),
    ],
)
def test_a_toml_value_is_read(kind: ValueKind[Any], toml: object, value: object) -> None:
    assert kind.from_toml(toml) == value


@pytest.mark.parametrize(
    ("kind", "toml"),
    [
        (TEXT, 5),
        (TEXT, ["a"]),
        (BOOLEAN, 0),
        (BOOLEAN, 1),
        (BOOLEAN, "yes"),
        (INTEGER, True),
        (INTEGER, 1.0),
        (INTEGER, 1 << 63),
        (INTEGER, "many"),
        (DURATION, True),
        (DURATION, 1.5),
        (DURATION, 1 << 60),
        (DURATION, "5"),
        (STRINGS, 5),
        (STRINGS, ["a", 5]),
        (FLOATS, 0.5),
        (FLOATS, ["0.5"]),
        (FLOATS, [True]),
        (LOG_LEVEL, 2),
        (COLOR, True),
        (SWITCH, 1),
        (TEXT, datetime.date(2024, 1, 1)),
    ],
)
def test_a_toml_value_of_the_wrong_type_is_refused(kind: ValueKind[Any], toml: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        kind.from_toml(toml)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (TEXT, "/data", "/data"),
        (TEXT, "[nsqd] ", '"[nsqd] "'),
        (BOOLEAN, True, "true"),
        (BOOLEAN, False, "false"),
        (INTEGER, 10_000, "10000"),
        (DURATION, 900_000_000_000, "15m0s"),
        (STRINGS, ("a", "b"), "a,b"),
        (STRINGS, (), ""),
        (FLOATS, (0.99, 1.0), "0.99,1"),
        (LOG_LEVEL, LogLevel.INFO, "info"),
        (COLOR, 1, "red"),
    ],
)
def test_a_value_is_shown_as_a_user_would_write_it(kind: ValueKind[Any], value: object, text: str) -> None:
    assert kind.to_text(value) == text
