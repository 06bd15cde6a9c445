"""A session that stops: nothing is read meanwhile, and it goes on where it was."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.nsqd.connection import REST_NS, Output, Pause
from emberq.wire.command import Command, Nop
from emberq.wire.error import FatalError
from tests.support.waiting import turns


class Socket:
    """As much of a transport as is needed."""

    def __init__(self) -> None:
        self.reads = True

    def write(self, data: bytes) -> None: ...

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads


class Rig:
    """A suspension, and what it told its session."""

    def __init__(self) -> None:
        self.socket = Socket()
        self.output = Output()
        self.output.use_transport(cast(asyncio.Transport, self.socket))
        self.told: list[object] = []
        self.suspension = Pause(
            self.output,
            spawn=lambda work: asyncio.get_running_loop().create_task(work),
            resume=lambda waiting: self.told.append((waiting, self.suspension.take_kept())),
            fail=self.told.append,
        )

    @property
    def is_stopped(self) -> bool:
        return self.suspension.awaited is not None


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_giving_way_lasts_one_turn_of_the_loop(rig: Rig) -> None:
    rig.suspension.give_way()
    assert (rig.is_stopped, rig.socket.reads) == (True, False)
    rig.suspension.keep(b"a packet that had been read")
    await turns(1)
    assert (rig.is_stopped, rig.socket.reads) == (False, True)
    assert rig.told == [(None, b"a packet that had been read")]


async def test_a_rest_lasts_for_some_turns_and_ends_by_itself(rig: Rig) -> None:
    rig.suspension.rest()
    rig.suspension.rest()
    await turns(1)
    assert (rig.is_stopped, rig.socket.reads) == (True, False)
    await asyncio.sleep(10 * REST_NS / NS_PER_SECOND)
    assert (rig.is_stopped, rig.socket.reads) == (False, True)
    assert rig.told == [(None, b"")]


async def test_a_connection_that_ends_does_not_come_back_from_its_rest(rig: Rig) -> None:
    rig.suspension.rest()
    rig.suspension.end()
    await asyncio.sleep(10 * REST_NS / NS_PER_SECOND)
    assert rig.told == []


async def test_a_packet_that_is_discarded_does_not_come(rig: Rig) -> None:
    rig.suspension.give_way()
    rig.suspension.keep(b"a packet that had been read in clear")
    rig.suspension.discard()
    rig.suspension.keep(b"TLS")
    await turns(1)
    assert rig.told == [(None, b"TLS")]


async def test_it_stops_until_the_work_is_done_and_goes_on_with_the_command_that_waits(rig: Rig) -> None:
    done = asyncio.Event()

    async def work() -> None:
        await done.wait()

    command: Command = Nop()
    rig.suspension.until(work(), waiting=command)
    rig.suspension.give_way()  # it has given way already
    await turns()
    assert (rig.is_stopped, rig.socket.reads, rig.told) == (True, False, [])
    done.set()
    await turns()
    assert (rig.is_stopped, rig.socket.reads, rig.told) == (False, True, [(command, b"")])


async def test_work_that_fails_fails_the_session(rig: Rig) -> None:
    wrong = FatalError(b"E_INVALID")

    async def work() -> None:
        raise wrong

    rig.suspension.until(work())
    await turns()
    assert (rig.is_stopped, rig.told) == (False, [wrong])


async def test_a_connection_that_is_closing_does_not_go_on(rig: Rig) -> None:
    rig.suspension.give_way()
    rig.output.is_closing = True
    await turns()
    assert rig.told == []
    rig.suspension.give_way()
    assert not rig.is_stopped


@pytest.mark.parametrize("is_work", [False, True])
async def test_what_it_waits_for_ends_with_the_connection(rig: Rig, is_work: bool) -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    if is_work:
        rig.suspension.until(work())
    else:
        rig.suspension.give_way()
    await asyncio.sleep(0) if is_work else None
    rig.suspension.end()
    rig.suspension.end()
    await turns()
    assert (rig.is_stopped, rig.told) == (False, [])
    assert len(asyncio.all_tasks()) == 1
