"""Log lines look as NSQ's do, and one record is one line."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.base.log import JsonFormatter, LineFormatter, LogFormat, LogLevel, RefusalLog, configure, set_level

logger = logging.getLogger("emberq.tests.log")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the lines go; emberq's logging is as before afterwards."""
    root = logging.getLogger("emberq")
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def _half_past_five_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XST-05:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def record(text: str, *, created: float, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("emberq.x", level, __file__, 1, text, None, None)
    made.created = created
    return made


@pytest.mark.usefixtures("_half_past_five_east")
def test_a_line_has_prefix_local_time_with_microseconds_level_and_text() -> None:
    formatter = LineFormatter("[nsqd] ")
    line = formatter.format(record("TCP: listening on 127.0.0.1:4150", created=1_700_000_000.25))
    assert line == "[nsqd] 2023/11/15 03:43:20.250000 INFO: TCP: listening on 127.0.0.1:4150"


@pytest.mark.usefixtures("_half_past_five_east")
def test_the_time_goes_on_from_line_to_line() -> None:
    formatter = LineFormatter("")
    lines = [formatter.format(record("x", created=created)) for created in (0.0, 0.5, 1.0, 59.25, 60.0)]
    assert [line[17:26] for line in lines] == ["00.000000", "00.500000", "01.000000", "59.250000", "00.000000"]


def log_on_every_level() -> None:
    logger.debug("d")
    logger.info("i")
    logger.warning("w")
    logger.error("e")
    logger.critical("f")


@pytest.mark.conformance(256)
@pytest.mark.parametrize(
    ("level", "words"),
    [
        (LogLevel.FATAL, ["FATAL"]),
        (LogLevel.ERROR, ["ERROR", "FATAL"]),
        (LogLevel.WARN, ["WARNING", "ERROR", "FATAL"]),
        (LogLevel.INFO, ["INFO", "WARNING", "ERROR", "FATAL"]),
        (LogLevel.DEBUG, ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]),
    ],
)
def test_a_level_shows_itself_and_what_is_graver(stream: io.StringIO, level: LogLevel, words: list[str]) -> None:
    configure(prefix="[nsqd] ", level=level, stream=stream)
    log_on_every_level()
    assert re.findall(r"\d (\w+): ", stream.getvalue()) == words


def test_the_level_can_be_changed_while_running(stream: io.StringIO) -> None:
    configure(prefix="", level=LogLevel.FATAL, stream=stream)
    set_level(LogLevel.DEBUG)
    log_on_every_level()
    assert len(stream.getvalue().splitlines()) == 5


def test_configuring_again_replaces_the_first(stream: io.StringIO) -> None:
    earlier = io.StringIO()
    configure(prefix="[a] ", level=LogLevel.INFO, stream=earlier)
    configure(prefix="[b] ", level=LogLevel.INFO, stream=stream)
    logger.info("once")
    assert earlier.getvalue() == ""
    assert stream.getvalue().startswith("[b] ")
    assert stream.getvalue().count("once") == 1


def test_lines_go_to_standard_error_unless_told_otherwise(
    stream: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(prefix="[nsqd] ", level=LogLevel.INFO)
    logger.info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("INFO: hello\n")


def test_text_from_outside_cannot_forge_a_line(stream: io.StringIO) -> None:
    configure(prefix="[nsqd] ", level=LogLevel.INFO, stream=stream)
    logger.info("client %s left", "x\n[nsqd] 2024/01/01 00:00:00.000000 FATAL: all is lost\x1b[2J")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"client x\n[nsqd] 2024/01/01 00:00:00.000000 FATAL: all is lost\x1b[2J left")


def test_a_traceback_follows_its_line_indented(stream: io.StringIO) -> None:
    configure(prefix="[nsqd] ", level=LogLevel.INFO, stream=stream)
    logger.error("cannot go on", exc_info=ValueError("first\n[nsqd] second"))
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("ERROR: cannot go on")
    assert trace
    assert all(line.startswith("\t") for line in trace)


def test_levels_carry_the_numbers_and_words_of_nsqs_http_api() -> None:
    assert [(level.word, int(level)) for level in LogLevel] == [
        ("debug", 1),
        ("info", 2),
        ("warn", 3),
        ("error", 4),
        ("fatal", 5),
    ]


# JSON.


def configure_json(stream: io.StringIO) -> None:
    configure(prefix="[nsqd] ", level=LogLevel.DEBUG, log_format=LogFormat.JSON, program="nsqd", stream=stream)


@pytest.mark.usefixtures("_half_past_five_east")
def test_a_line_of_json_says_when_how_grave_who_and_what() -> None:
    line = JsonFormatter("nsqd").format(record("TCP: listening on 127.0.0.1:4150", created=1_700_000_000.25))
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250000Z",
        "level": "info",
        "program": "nsqd",
        "logger": "emberq.x",
        "message": "TCP: listening on 127.0.0.1:4150",
    }


def test_json_has_the_levels_of_the_log_level_flag(stream: io.StringIO) -> None:
    configure_json(stream)
    log_on_every_level()
    levels = [json.loads(line)["level"] for line in stream.getvalue().splitlines()]
    assert levels == [level.word for level in LogLevel]


@pytest.mark.parametrize(
    "text",
    ['"}\n{"level":"fatal"', "\x1b[2J\x7f\x9b", "\u2028\u2029\x85", "\udcff\U0001f525", "\\n"],
    ids=["another line", "terminal controls", "line separators", "beyond ASCII", "backslash"],
)
def test_text_from_outside_stays_one_line_of_printable_ascii_in_json(stream: io.StringIO, text: str) -> None:
    configure_json(stream)
    logger.info("client %s left", text)
    line = stream.getvalue()
    assert line.endswith("\n")
    assert line[:-1].isascii()
    assert line[:-1].isprintable()
    assert json.loads(line)["message"] == f"client {text} left"


def test_a_traceback_is_a_member_of_the_object(stream: io.StringIO) -> None:
    configure_json(stream)
    logger.error("cannot go on", exc_info=ValueError("first\nsecond"))
    (line,) = stream.getvalue().splitlines()
    shown = json.loads(line)
    assert (shown["message"], shown["traceback"]) == ("cannot go on", "ValueError: first\nsecond")


def test_the_formats_have_the_names_of_the_flag() -> None:
    assert [str(log_format) for log_format in LogFormat] == ["text", "json"]


# What clients can cause at will.


def test_refusals_are_logged_once_in_an_interval_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    refusals = RefusalLog(logger, clock=clock, interval_ns=NS_PER_SECOND)
    for _ in range(3):
        refusals.warn("no")
    clock.advance(seconds=1)
    refusals.warn("not at all")
    clock.advance(seconds=1)
    refusals.warn("never")
    assert caplog.messages == ["no", "not at all; 2 others were refused before", "never"]
