"""/debug/pprof: answers of the handlers."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from emberq.http.debug import ProfilerApi
from emberq.http.message import Request


@pytest.fixture
def api() -> ProfilerApi:
    return ProfilerApi()


def request(query: str = "") -> Request:
    return Request("GET", f"/?{query}")


def test_the_index_names_what_there_is(api: ProfilerApi) -> None:
    shown = api.index(request()).body.decode()
    assert all(name in shown for name in ("cmdline", "goroutine", "profile", "heap"))


def test_the_command_line_is_shown_without_its_secrets(api: ProfilerApi, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["nsqd", "--auth-http-address=http://me:secret@auth.example/?token=abc", "--data-path", "/tmp/x"]
    monkeypatch.setattr(sys, "argv", arguments)
    shown = api.command_line(request()).body.decode()
    assert shown.split("\0") == ["nsqd", "--auth-http-address=http://***@auth.example/?token=***", *arguments[2:]]


async def test_stacks_are_shown(api: ProfilerApi) -> None:
    assert "in test_stacks_are_shown" in api.stacks(request()).body.decode()


def test_a_profile_holds_stacks_and_leaves_no_thread_behind(api: ProfilerApi) -> None:
    before = set(threading.enumerate())  # of which some, left behind by others, may end meanwhile
    answer = asyncio.run(api.profile(request("seconds=0.5")))  # this module must be seen to wait
    assert answer.status == 200
    assert b"test_debug_profiler" in answer.body
    assert set(threading.enumerate()) <= before


async def test_a_heap_report_is_given(api: ProfilerApi) -> None:
    answer = await api.heap(request("seconds=0.01"))
    assert answer.status == 200
    assert b"resident memory" in answer.body


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "x", "", "nan", "inf"])
async def test_a_recording_takes_up_to_a_minute(api: ProfilerApi, seconds: str) -> None:
    for record in (api.profile, api.heap):
        answer = await record(request(f"seconds={seconds}"))
        assert (answer.status, answer.body) == (400, b"seconds must be a number above 0 and up to 60")


async def test_only_one_recording_goes_on_at_a_time(api: ProfilerApi) -> None:
    first = asyncio.create_task(api.profile(request("seconds=60")))
    await asyncio.sleep(0)
    answer = await api.heap(request("seconds=60"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (answer.status, answer.body) == (409, b"another recording is going on")
    assert (await api.profile(request("seconds=0.01"))).status == 200
