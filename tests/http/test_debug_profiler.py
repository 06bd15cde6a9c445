"""/debug/pprof: answers of the handlers."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from emberq.http.debug import ProfilerApi, for_operators, profiler_routes
from emberq.http.message import HttpError, Request, plain
from emberq.http.router import Route


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
    answer = await api.profile(request(f"seconds={seconds}"))
    assert (answer.status, answer.body) == (400, b"seconds must be a number above 0 and up to 60")


@pytest.mark.parametrize("seconds", ["0", "10.1", "60", "nan"])
async def test_a_recording_of_allocations_takes_up_to_ten_seconds(api: ProfilerApi, seconds: str) -> None:
    answer = await api.heap(request(f"seconds={seconds}"))
    assert (answer.status, answer.body) == (400, b"seconds must be a number above 0 and up to 10")


async def test_only_one_recording_goes_on_at_a_time(api: ProfilerApi) -> None:
    first = asyncio.create_task(api.profile(request("seconds=60")))
    await asyncio.sleep(0)
    answer = await ProfilerApi().heap(request("seconds=10"))  # of another daemon in the same process
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (answer.status, answer.body) == (409, b"another recording is going on")
    assert (await api.profile(request("seconds=0.01"))).status == 200


def from_address(remote_address: str, **headers: str) -> Request:
    named = {name.replace("_", "-").lower().encode(): value.encode() for name, value in headers.items()}
    return Request("GET", "/debug/pprof/", headers=named, remote_address=remote_address)


@pytest.mark.parametrize(
    ("asked", "is_answered"),
    [
        (from_address("127.0.0.1:5"), True),
        (from_address("127.1.2.3:5"), True),
        (from_address("[::1]:5"), True),
        (from_address("[::ffff:127.0.0.1]:5"), True),
        (from_address("@"), True),
        (from_address("10.0.0.7:5"), False),
        (from_address("[::ffff:10.0.0.7]:5"), False),
        (from_address("127.0.0.1:5", X_Forwarded_For="10.0.0.7"), False),
        (from_address("127.0.0.1:5", Forwarded="for=10.0.0.7"), False),
        (from_address("127.0.0.1:5", X_Real_IP="10.0.0.7"), False),
        (from_address("127.0.0.1:5", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate"), False),
        (from_address("127.0.0.1:5", Sec_Fetch_Site="none"), True),
        (from_address("127.0.0.1:5", Sec_Fetch_Site="none", Accept_Language="en"), True),
        (from_address("127.0.0.1:5", Accept_Language="en", Host="0.0.0.0:4151"), False),
        (from_address("nonsense"), False),
    ],
)
def test_only_this_machine_may_look_inside(asked: Request, is_answered: bool) -> None:
    [route] = for_operators([Route("GET", "/x", lambda _request: plain("x"))], has_token=False)
    if is_answered:
        assert route.handler(asked) is not None
        return
    with pytest.raises(HttpError) as refusal:
        route.handler(asked)
    assert (refusal.value.status, refusal.value.message) == (403, "FORBIDDEN")


def test_a_token_does_as_well() -> None:
    index = profiler_routes(has_token=True)[0]
    assert index.handler(from_address("10.0.0.7:5")) is not None
