"""Every library does every job, with our nsqd."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import frame
from bench.clients.job import Job, Way
from bench.clients.plan import LIBRARIES, ClientPlan
from bench.connection import create_channel
from bench.crew import Crew
from bench.failure import LoadFailure
from bench.generator import Generators, Order
from bench.server import Binary, Server
from tests.bench.support import needs_compiler

pytestmark = needs_compiler

MESSAGES = 400
CHANNEL = "clients"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Binary(path=Path(sys.executable).parent / "nsqd").serve(()) as server:
        yield server


def job(server: Server, way: Way, *, topic: str) -> Job:
    bodies = tuple(frame.bodies(50 if way is Way.PUBLISH_MANY else 1))
    return Job(
        way=way,
        address=server.address,
        topic=topic,
        channel=CHANNEL,
        messages=MESSAGES,
        seconds=20,
        width=10,
        bodies=bodies,
    )


def fill(server: Server, topic: str) -> None:
    create_channel(server.address, topic=topic, channel=CHANNEL)
    bodies = {"min": frame.BODY_BYTES, "max": frame.BODY_BYTES}
    address = "{}:{}".format(*server.address)
    order = Order("publish", {"address": address, "topic": topic, "messages": MESSAGES, "batch": MESSAGES, **bodies})
    with Generators([order]) as generators:
        generators.assemble()
        generators.work()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_does_all_jobs(server: Server, library: str) -> None:
    jobs = [job(server, way, topic=f"{library}_{way.name}") for way in Way]
    for each in jobs:
        fill(server, each.topic)
    with Crew([ClientPlan(library=library, job=each) for each in jobs]) as crew:
        crew.assemble()
        tallies = crew.work()
    assert sorted(tally.timed for tally in tallies) == [MESSAGES] * len(jobs)


def test_a_library_that_is_not_there_is_named(server: Server) -> None:
    with pytest.raises(LoadFailure, match="carrierpigeon cannot be measured: there is no module"):
        ClientPlan(library="carrierpigeon", job=job(server, Way.HANDLER, topic="t")).open()
