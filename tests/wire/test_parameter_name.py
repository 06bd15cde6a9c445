"""Which names are names, and how any bytes look when an error text quotes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.parameter import MAX_NAME_BYTES, is_ephemeral, is_valid_name, parse_name, quote
from tests.wire.streams import examples


@pytest.mark.conformance(13, 15)
@pytest.mark.parametrize(
    "name",
    [
        "test",
        "test-with_period.",
        "test#ephemeral",
        ".",
        "-",
        "_",
        "0",
        "AZaz09",
        "x" * 64,
        "x" * 54 + "#ephemeral",
    ],
)
def test_a_name_is_letters_digits_dots_dashes_and_underscores(name: str) -> None:
    assert parse_name(name.encode()) == name
    assert is_valid_name(name)


@pytest.mark.conformance(14, 15, 16)
@pytest.mark.parametrize(
    "name",
    [
        "",
        "test:ephemeral",
        "#ephemeral",
        "a$",
        "a b",
        "test\n",
        "test#ephemeral\n",
        "test#Ephemeral",
        "test#ephemeralx",
        "a#ephemeral#ephemeral",
        "#",
        "é",
        "٣",
        "x" * 65,
        "x" * 55 + "#ephemeral",
    ],
)
def test_anything_else_is_no_name(name: str) -> None:
    assert parse_name(name.encode()) is None
    assert not is_valid_name(name)


@pytest.mark.parametrize("raw", [b"\xff", b"caf\xc3", b"t\x00"])
def test_bytes_that_are_no_text_are_no_name(raw: bytes) -> None:
    assert parse_name(raw) is None


def test_a_lone_surrogate_is_no_name() -> None:
    assert not is_valid_name("\ud800")


@examples(200)
@given(st.from_regex(rb"[.a-zA-Z0-9_-]{1,70}(#ephemeral)?", fullmatch=True))
def test_the_suffix_counts_towards_the_length(raw: bytes) -> None:
    assert (parse_name(raw) is not None) == (len(raw) <= MAX_NAME_BYTES)


@pytest.mark.parametrize(
    ("name", "expected"), [("t#ephemeral", True), ("t", False), ("ephemeral", False), ("t#ephemeral.", False)]
)
def test_a_suffix_makes_a_name_ephemeral(name: str, expected: bool) -> None:
    assert is_ephemeral(name) is expected


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"a$", '"a$"'),
        (b"a b~", '"a b~"'),
        (b'b\x01\xff\xc3\xa9"\\', '"b\\x01\\xffé\\"\\\\"'),
        (b"\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        (b"\x00\x1b\x1f\x7f", '"\\x00\\x1b\\x1f\\x7f"'),
        (b"'", '"\'"'),
        (b"\x80\xfe", '"\\x80\\xfe"'),
        (b"\xe2\x82", '"\\xe2\\x82"'),  # the beginning of a euro sign
        (b"\xc0\xaf", '"\\xc0\\xaf"'),  # a slash, spelled too long
        (b"\xed\xa0\x80", '"\\xed\\xa0\\x80"'),  # a surrogate is no character
        ("€😀".encode(), '"€😀"'),
        ("\ufffd".encode(), '"\ufffd"'),
        ("\u0085\u00a0\u200b\u2028".encode(), '"\\u0085\\u00a0\\u200b\\u2028"'),
        ("\ufeff\ue000\uffff".encode(), '"\\ufeff\\ue000\\uffff"'),
        ("\U000e0001".encode(), '"\\U000e0001"'),
    ],
)
def test_what_cannot_be_printed_is_escaped(raw: bytes, quoted: str) -> None:
    assert quote(raw) == quoted.encode()


def unquote(quoted: bytes) -> bytes:
    """What was quoted, by the rules of the escapes alone."""
    short = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}

    def plain(escape: re.Match[bytes]) -> bytes:
        kind, digits = escape[1][:1], escape[1][1:]
        if kind == b"x":
            return bytes([int(digits, 16)])
        return chr(int(digits, 16)).encode() if digits else short.get(kind, kind)

    assert quoted[:1] + quoted[-1:] == b'""'
    return re.sub(rb"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)", plain, quoted[1:-1])


@examples(500)
@given(st.one_of(st.binary(max_size=20), st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_a_quoted_name_is_printable_and_tells_every_byte(raw: bytes) -> None:
    quoted = quote(raw)
    assert quoted.decode("utf-8").isprintable()
    assert unquote(quoted) == raw
