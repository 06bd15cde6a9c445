"""/debug: answers of the handlers."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref

import pytest

from emberq.http.message import Request, Response
from emberq.nsqd.api import debug
from emberq.nsqd.api.debug import DebugApi
from tests.nsqd.api.rig import request


@pytest.fixture
def api() -> DebugApi:
    return DebugApi()


class Cycle:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


def put(query: str = "", body: bytes = b"") -> Request:
    return Request("PUT", f"/debug/setblockrate?{query}", body=body)


def test_the_index_names_what_there_is(api: DebugApi) -> None:
    shown = api.index(request()).body.decode()
    assert all(name in shown for name in ("cmdline", "goroutine", "profile", "heap"))


def test_the_command_line_is_shown_without_its_secrets(api: DebugApi, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["nsqd", "--auth-http-address=http://me:secret@auth.example/?token=abc", "--data-path", "/tmp/x"]
    monkeypatch.setattr(sys, "argv", arguments)
    shown = api.command_line(request()).body.decode()
    assert shown.split("\0") == ["nsqd", "--auth-http-address=http://***@auth.example/?token=***", *arguments[2:]]


def test_stacks_are_shown(api: DebugApi) -> None:
    async def look() -> str:
        return api.stacks(request()).body.decode()

    assert "in test_stacks_are_shown" in asyncio.run(look())


def test_a_profile_holds_stacks_and_leaves_no_thread_behind(api: DebugApi) -> None:
    before = threading.active_count()
    answer = asyncio.run(api.profile(request("seconds=0.1")))
    assert answer.status == 200
    assert b"test_debug" in answer.body
    assert threading.active_count() == before


def test_a_heap_report_is_given(api: DebugApi) -> None:
    answer = asyncio.run(api.heap(request("seconds=0.01")))
    assert answer.status == 200
    assert b"resident memory" in answer.body


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "x", "", "nan", "inf"])
def test_a_recording_takes_up_to_a_minute(api: DebugApi, seconds: str) -> None:
    for record in (api.profile, api.heap):
        answer = asyncio.run(record(request(f"seconds={seconds}")))
        assert (answer.status, answer.body) == (400, b"seconds must be a number above 0 and up to 60")


def test_only_one_recording_goes_on_at_a_time(api: DebugApi) -> None:
    async def record_twice() -> Response:
        first = asyncio.create_task(api.profile(request("seconds=60")))
        await asyncio.sleep(0)
        second = await api.heap(request("seconds=60"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return second

    answer = asyncio.run(record_twice())
    assert (answer.status, answer.body) == (409, b"another recording is going on")
    assert asyncio.run(api.profile(request("seconds=0.01"))).status == 200


def test_freeing_memory_collects_garbage(api: DebugApi) -> None:
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        assert garbage() is not None
        answer = asyncio.run(api.free_memory(request()))
    finally:
        gc.enable()
    assert (answer.status, garbage()) == (200, None)


def test_a_large_heap_is_not_looked_through(api: DebugApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "MAX_SWEPT_BLOCKS", 0)
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        answer = asyncio.run(api.free_memory(request()))
        assert (answer.status, garbage() is None) == (200, False)
    finally:
        gc.enable()


@pytest.mark.parametrize(("query", "body"), [("rate=1", b""), ("rate=-1", b""), ("", b"rate=7"), ("rate=x", b"rate=7")])
def test_a_block_rate_is_accepted_from_query_or_form(api: DebugApi, query: str, body: bytes) -> None:
    assert api.set_block_rate(put(query, body)).status == 200


@pytest.mark.parametrize(("query", "rate"), [("", ""), ("rate=x", "x")])
def test_a_block_rate_must_be_a_number(api: DebugApi, query: str, rate: str) -> None:
    answer = api.set_block_rate(put(query))
    assert answer.status == 400
    assert answer.body.decode() == f'invalid block rate : parsing "{rate}": invalid syntax'
