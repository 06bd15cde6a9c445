"""The access log: what is written, and in how many writes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.log import JsonFormatter, LineFormatter
from emberq.base.text import format_duration
from emberq.http import server as module
from emberq.http.server import AccessLog
from tests.http.playback import Stage
from tests.support.raw_http_client import request
from tests.support.waiting import turns

LINES = ["200 GET /ping (1.2.3.4:5) 12.5µs", "404 GET /nowhere (@) 1ms"]

AddHandler = Callable[[logging.Handler], None]


class CountingStream(io.StringIO):
    """Counts the writes; may be broken."""

    def __init__(self) -> None:
        super().__init__()
        self.write_count = 0
        self.is_broken = False

    def write(self, text: str) -> int:
        if self.is_broken:
            raise OSError("no space left on device")
        self.write_count += 1
        return super().write(text)


class KeepingHandler(logging.Handler):
    """A handler that is no stream's: it keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def add_handler() -> Iterator[AddHandler]:
    """Adds a handler to emberq's log, which is switched to INFO."""
    logger = logging.getLogger("emberq")
    level, handlers = logger.level, list(logger.handlers)
    logger.setLevel(logging.INFO)
    yield logger.addHandler
    logger.setLevel(level)
    logger.handlers = handlers


def stream_handler(formatter: logging.Formatter | None = None) -> tuple[logging.Handler, CountingStream]:
    stream = CountingStream()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    return handler, stream


def write(lines: list[str]) -> None:
    """Write them together."""
    AccessLog(lines).write()


async def test_requests_answered_in_one_turn_are_logged_in_one_write(add_handler: AddHandler) -> None:
    handler, stream = stream_handler(LineFormatter("[nsqd] "))
    add_handler(handler)
    stage = Stage()
    transport = await stage.play([request("GET", "/ping") * 10 + request("GET", "/nowhere")])
    assert stream.write_count == 1
    lines = stream.getvalue().splitlines()
    assert [line.partition("INFO: ")[2] for line in lines] == [
        *["200 GET /ping (127.0.0.1:1234) 0s"] * 10,
        "404 GET /nowhere (127.0.0.1:1234) 0s",
    ]
    assert all(line.startswith("[nsqd] 20") for line in lines)
    await stage.leave(transport)


async def test_a_client_cannot_forge_a_line(add_handler: AddHandler) -> None:
    handler, stream = stream_handler(LineFormatter(""))
    add_handler(handler)
    stage = Stage()
    for byte in range(256):
        transport = await stage.play([b"GET /a%bb HTTP/1.1\r\nHost: x\r\n\r\n" % bytes([byte])])
        await stage.leave(transport)
    lines = stream.getvalue().split("\n")
    assert len(lines) > 256
    assert all(line.isprintable() for line in lines)


async def test_each_turn_has_its_write(add_handler: AddHandler) -> None:
    handler, stream = stream_handler()
    add_handler(handler)
    log = AccessLog()
    for line in LINES:
        log.add(line)
        assert stream.write_count == 0
    await turns(2)
    log.add("3")
    await turns(2)
    assert (stream.write_count, stream.getvalue()) == (2, "\n".join([*LINES, "3", ""]))


async def test_a_server_that_closes_logs_at_once(add_handler: AddHandler) -> None:
    handler, stream = stream_handler()
    add_handler(handler)
    stage = Stage()
    stage.server.access_log.add("before")
    stage.server.close()
    stage.server.access_log.add("after")
    assert stream.getvalue() == "before\nafter\n"


@pytest.mark.parametrize("formatter", [None, logging.Formatter("%(levelname)s %(message)s"), LineFormatter("[nsqd] ")])
def test_lines_written_together_read_like_lines_written_one_by_one(
    add_handler: AddHandler, formatter: logging.Formatter | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", lambda: 1_700_000_000.0)
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)  # what logging asks from Python 3.13 on
    handler, together = stream_handler(formatter)
    add_handler(handler)
    write(LINES)
    written = together.getvalue()
    for line in LINES:
        logging.getLogger(module.__name__).info("%s", line)
    assert (together.getvalue(), together.write_count) == (written * 2, 1 + len(LINES))


def test_as_json_every_line_is_an_object(add_handler: AddHandler) -> None:
    handler, stream = stream_handler(JsonFormatter("nsqd"))
    add_handler(handler)
    write(LINES)
    objects = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(each["level"], each["logger"], each["message"]) for each in objects] == [
        ("info", "emberq.http.server", line) for line in LINES
    ]


def test_other_handlers_get_a_record_for_each_line(add_handler: AddHandler) -> None:
    handler = KeepingHandler()
    add_handler(handler)
    write(LINES)
    assert [(record.getMessage(), record.levelname) for record in handler.records] == [(line, "INFO") for line in LINES]
    assert handler.records[0] is not handler.records[1]


def test_a_handler_of_graver_records_gets_none(add_handler: AddHandler) -> None:
    handler, stream = stream_handler()
    handler.setLevel(logging.WARNING)
    add_handler(handler)
    write(LINES)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("on_logger", [False, True])
def test_filters_decide_on_each_line(add_handler: AddHandler, on_logger: bool) -> None:
    handler, stream = stream_handler()
    add_handler(handler)
    filtered = logging.getLogger(module.__name__) if on_logger else handler

    def is_ping(record: logging.LogRecord) -> bool:
        return "/ping" in record.getMessage()

    filtered.addFilter(is_ping)
    try:
        write(LINES)
    finally:
        filtered.removeFilter(is_ping)
    assert stream.getvalue() == LINES[0] + "\n"


def test_a_log_that_cannot_be_written_stops_nothing(add_handler: AddHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler, stream = stream_handler()
    add_handler(handler)
    stream.is_broken = True
    write(LINES)
    stream.is_broken = False
    write(LINES[:1])
    assert stream.getvalue() == LINES[0] + "\n"


async def test_nothing_is_collected_while_the_log_is_off(add_handler: AddHandler) -> None:
    handler, stream = stream_handler()
    add_handler(handler)
    logging.getLogger("emberq").setLevel(logging.WARNING)
    stage = Stage()
    transport = await stage.play([request("GET", "/ping")])
    assert stream.getvalue() == ""
    await stage.leave(transport)


@given(st.integers(0, 10**7))
def test_durations_are_spelled_as_everywhere(duration_ns: int) -> None:
    assert module.short_duration(duration_ns) == format_duration(duration_ns)
