"""Command lines are read as NSQ's own programs read them, mistakes included."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.base.flag import BOOLEAN, DURATION, INTEGER, FlagError, HelpRequested, Strings, Text, ValueKind, parse_flags

KINDS: dict[str, ValueKind[Any]] = {
    "snappy": BOOLEAN,
    "data-path": Text(),
    "mem-queue-size": INTEGER,
    "msg-timeout": DURATION,
    "lookupd-tcp-address": Strings(),
}


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        (["-data-path=/x"], [("data-path", "/x")]),
        (["--data-path=/x"], [("data-path", "/x")]),
        (["-data-path", "/x"], [("data-path", "/x")]),
        (["--data-path", "/x"], [("data-path", "/x")]),
        (["--data-path="], [("data-path", "")]),
        (["--data-path", ""], [("data-path", "")]),
        (["--data-path=a=b"], [("data-path", "a=b")]),
        (["--data-path", "--snappy"], [("data-path", "--snappy")]),
        (["--data-path", "--", "--snappy"], [("data-path", "--"), ("snappy", True)]),
        (["--snappy"], [("snappy", True)]),
        (["--snappy=false"], [("snappy", False)]),
        (["--snappy=0", "--snappy=T"], [("snappy", False), ("snappy", True)]),
        (["--mem-queue-size", "-5"], [("mem-queue-size", -5)]),
        (["--mem-queue-size=0x10"], [("mem-queue-size", 16)]),
        (["--msg-timeout=1m30s"], [("msg-timeout", 90_000_000_000)]),
        (
            ["--lookupd-tcp-address=a:1", "--lookupd-tcp-address=b:2"],
            [("lookupd-tcp-address", ("a:1",)), ("lookupd-tcp-address", ("b:2",))],
        ),
    ],
)
def test_flags_are_read_in_every_form(argv: list[str], flags: list[tuple[str, object]]) -> None:
    line = parse_flags(argv, KINDS)
    assert list(line.flags) == flags
    assert line.rest == ()


@pytest.mark.parametrize(
    ("argv", "rest"),
    [
        (["--snappy", "false", "--nope"], ("false", "--nope")),
        (["--snappy", "--", "--nope"], ("--nope",)),
        (["--snappy", "-", "--nope"], ("-", "--nope")),
        (["--snappy", "", "--nope"], ("", "--nope")),
    ],
)
def test_flags_end_at_the_first_word_that_is_none(argv: list[str], rest: tuple[str, ...]) -> None:
    line = parse_flags(argv, KINDS)
    assert line.flags == (("snappy", True),)
    assert line.rest == rest


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["-nope"], "flag provided but not defined: -nope"),
        (["--nope=1"], "flag provided but not defined: -nope"),
        (["--msg-timeout", "5"], 'invalid value "5" for flag -msg-timeout: parse error'),
        (["--mem-queue-size=many"], 'invalid value "many" for flag -mem-queue-size: parse error'),
        (["--mem-queue-size="], 'invalid value "" for flag -mem-queue-size: parse error'),
        (
            ["--mem-queue-size=9223372036854775808"],
            'invalid value "9223372036854775808" for flag -mem-queue-size: value out of range',
        ),
        (["--snappy=foo"], 'invalid boolean value "foo" for -snappy: parse error'),
        (["--snappy="], 'invalid boolean value "" for -snappy: parse error'),
        (["--data-path"], "flag needs an argument: -data-path"),
        (["---data-path"], "bad flag syntax: ---data-path"),
        (["-=5"], "bad flag syntax: -=5"),
        (["--=5"], "bad flag syntax: --=5"),
        (["--snappy=x", "--nope"], 'invalid boolean value "x" for -snappy: parse error'),
        (["--no\npe"], r"flag provided but not defined: -no\npe"),
    ],
)
def test_the_first_mistake_is_named(argv: list[str], complaint: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse_flags(argv, KINDS)
    assert str(caught.value) == complaint


@pytest.mark.parametrize("word", ["-h", "--h", "-help", "--help"])
def test_help_is_asked_for_by_flag(word: str) -> None:
    with pytest.raises(HelpRequested):
        parse_flags(["--snappy", word], KINDS)


def test_a_program_may_have_an_h_flag_of_its_own() -> None:
    assert parse_flags(["-h", "-help=1"], {"h": BOOLEAN, "help": INTEGER}).flags == (("h", True), ("help", 1))
