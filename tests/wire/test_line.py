"""Lines that were parsed before are known to all connections; each connection still judges them by its own rules."""

from __future__ import annotations

import pytest

from emberq.wire.command import Command, DeferredPublish, NumberedPublish, Publish
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.line import MAX_KNOWN_LINES, CommandLimits, LineParser, known_lines

LONGEST_TOPIC = b"x" * 64


def twice(line: bytes, limits: CommandLimits | None = None) -> list[Command]:
    """What two connections make of it."""
    return [LineParser(limits or CommandLimits()).parse_line(line) for _ in range(2)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"PUB t", Publish(b"PUB", "t", b"", (), 1)),
        (b"PUB t junk\r", Publish(b"PUB", "t", b"", (), 1)),
        (b"MPUB t", Publish(b"MPUB", "t", b"", (), 1)),
        (b"DPUB t 1500", DeferredPublish("t", 1500)),
        (b"PUB " + LONGEST_TOPIC + b" " + b"y" * 200, Publish(b"PUB", LONGEST_TOPIC.decode(), b"", (), 1)),
    ],
)
def test_a_line_that_comes_again_means_the_same(line: bytes, expected: Command) -> None:
    first, second = twice(line)
    assert first == second == expected
    assert first is not second


def test_a_body_does_not_stay_with_its_line() -> None:
    first, _ = twice(b"DPUB t 7")
    assert isinstance(first, DeferredPublish)
    first.fill(b"body")
    assert twice(b"DPUB t 7") == [DeferredPublish("t", 7)] * 2


def test_a_delay_that_another_server_allows_is_refused_by_this_one() -> None:
    twice(b"DPUB t 5000", CommandLimits(max_req_timeout_ms=5000))
    with pytest.raises(FatalError, match=r"^E_INVALID DPUB timeout 5000 out of range 0-4999$"):
        twice(b"DPUB t 5000", CommandLimits(max_req_timeout_ms=4999))


def test_a_known_line_is_refused_where_tls_is_required() -> None:
    twice(b"PUB t")
    parser = LineParser(CommandLimits())
    parser.tls_required = True
    with pytest.raises(FatalError, match=r"^E_INVALID cannot PUB in current state \(TLS required\)$"):
        parser.parse_line(b"PUB t")


def test_a_number_is_one_line_for_those_who_agreed_on_it_and_junk_for_the_others() -> None:
    for verb in (b"PUB", b"MPUB"):
        plain, numbered = Publish(verb, "t", b"", (), 1), NumberedPublish(verb, "t", b"", (), 7)
        line = verb + b" t 7"
        for _ in range(2):
            assert LineParser(CommandLimits()).parse_line(line) == plain
            decoder = CommandDecoder(CommandLimits())
            decoder.take_sequences(True)
            assert decoder.parse_line(line) == numbered


def test_lines_without_end_are_not_all_remembered() -> None:
    for number in range(2 * MAX_KNOWN_LINES):
        assert twice(b"PUB t%d" % number) == [Publish(b"PUB", f"t{number}", b"", (), 1)] * 2
        assert len(known_lines) <= MAX_KNOWN_LINES
    twice(b"PUB t " + b"x" * 1000)
    assert max(map(len, known_lines)) < 1000
