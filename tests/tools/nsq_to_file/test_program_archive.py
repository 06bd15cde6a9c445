"""All topics of the program: which are archived, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.base.program import ToolError
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.connection import Connection
from emberq.client.consumer import Consumer
from emberq.embedded import Embedded
from emberq.tools.client_flags import parse_client_option
from emberq.tools.nsq_to_file.options import ToFileOptions
from emberq.tools.nsq_to_file.program import Archive
from emberq.wire import command
from tests.client.scripted_nsqd import ScriptedNsqd
from tests.support.loop import advance
from tests.support.waiting import until

REFRESH_S = 5.0


class Rig:
    """An archive of a real nsqd; the file of a topic has its name."""

    def __init__(self, nsq: Embedded, folder: Path, **options: Any) -> None:
        self.nsq = nsq
        self.folder = folder
        defaults: dict[str, Any] = {"output_dir": str(folder), "filename_format": "<TOPIC>", "max_in_flight": 1}
        if "lookupd_http_address" not in options:
            defaults["nsqd_tcp_address"] = tuple(nsq.nsqd_tcp_addresses)
        self.archive = Archive(ToFileOptions(**(defaults | options)).validated())
        self.stop_asked = asyncio.Event()

    async def publish(self, topic: str, *bodies: bytes) -> None:
        connection = await Connection.open(self.nsq.nsqd_tcp_addresses[0], ClientConfig())
        await connection.request(command.mpub(topic, bodies))
        await connection.close()

    async def archived(self, topic: str, content: bytes) -> None:
        """Wait until exactly this is in the file of the topic."""
        path = self.folder / topic
        await until(lambda: path.exists() and path.read_bytes() == content)


def depth(nsq: Embedded, topic: str) -> int:
    """Messages of the topic that are not finished."""
    found = nsq.nsqds[0].broker.find_topic(topic)
    channel = found.find_channel("nsq_to_file") if found is not None else None
    assert channel is not None
    stats = channel.stats()
    return stats.depth + stats.in_flight_count


@asynccontextmanager
async def archiving(nsq: Embedded, folder: Path, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(nsq, folder, **options)
    running = asyncio.create_task(rig.archive.run(rig.stop_asked))
    yield rig
    rig.stop_asked.set()
    await running


async def test_every_named_topic_has_its_file(tmp_path: Path) -> None:
    async with Embedded(with_lookupd=False) as nsq, archiving(nsq, tmp_path, topic=("a", "b")) as rig:
        await rig.publish("a", b"1", b"2")
        await rig.publish("b", b"3")
        await rig.archived("a", b"1\n2\n")
        await rig.archived("b", b"3\n")


async def test_a_named_topic_must_match_the_pattern(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        Embedded(with_lookupd=False) as nsq,
        archiving(nsq, tmp_path, topic=("orders", "clicks"), topic_pattern="^o") as rig,
    ):
        await until(lambda: rig.archive.topics == ("orders",))
    assert "skipping topic clicks (doesn't match pattern ^o)" in caplog.messages


async def test_topics_that_match_are_discovered_when_they_appear(tmp_path: Path) -> None:
    async with Embedded() as nsq:
        discovery = {
            "lookupd_http_address": tuple(nsq.lookupd_http_addresses),
            "topic_pattern": r"\.log$",
            "topic_refresh_ns": int(REFRESH_S * 1e9),
        }
        async with archiving(nsq, tmp_path, **discovery) as rig:
            await rig.publish("a.log", b"1")
            await rig.publish("other", b"x")
            await until(lambda: nsq.lookupds[0].registry.topic_count == 2)
            advance(REFRESH_S)
            await rig.archived("a.log", b"1\n")
            await rig.publish("b.log", b"2")
            await until(lambda: nsq.lookupds[0].registry.topic_count == 3)
            advance(REFRESH_S)
            await rig.archived("b.log", b"2\n")
            assert rig.archive.topics == ("a.log", "b.log")


async def test_a_lookupd_that_is_down_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def complaints() -> int:
        text = "could not retrieve topic list: failed to query any nsqlookupd"
        return sum(message.startswith(text) for message in caplog.messages)

    async with Embedded(with_lookupd=False) as nsq:
        discovery = {"lookupd_http_address": ("127.0.0.1:1",), "topic_pattern": ".", "topic_refresh_ns": 10**9}
        async with archiving(nsq, tmp_path, **discovery):
            for attempts in (1, 2):
                await until(lambda: complaints() >= attempts)  # noqa: B023 - awaited within the round
                advance(1)


async def deliver_in_vain(nsq: Embedded, *, times: int) -> None:
    """Have the first message of the channel requeued so often."""
    config = ConsumerConfig(max_in_flight=1, max_attempts=0)
    async with Consumer("t", "nsq_to_file", nsqd_addresses=nsq.nsqd_tcp_addresses, config=config) as consumer:
        async for message in consumer:
            message.requeue(0, backoff=False)
            if message.attempts == times:
                break


async def test_a_message_is_archived_however_often_it_came_before(tmp_path: Path) -> None:
    async with Embedded(with_lookupd=False) as nsq:
        rig = Rig(nsq, tmp_path, topic=("t",))
        await rig.publish("t", b"x")
        await deliver_in_vain(nsq, times=20)
        async with archiving(nsq, tmp_path, topic=("t",)) as rig:
            await rig.archived("t", b"x\n")


async def test_messages_are_given_up_if_the_user_says_so(tmp_path: Path) -> None:
    async with Embedded(with_lookupd=False) as nsq:
        once = {"topic": ("t",), "consumer_opt": (parse_client_option("max_attempts,1"),)}
        rig = Rig(nsq, tmp_path, **once)
        await rig.publish("t", b"x")
        await deliver_in_vain(nsq, times=1)
        await rig.publish("t", b"y")
        async with archiving(nsq, tmp_path, **once) as rig:
            await until(lambda: depth(nsq, "t") == 0)
        assert (tmp_path / "t").read_bytes() == b"y\n"


async def test_messages_that_wait_for_a_sync_are_kept_from_timing_out(tmp_path: Path) -> None:
    async with ScriptedNsqd(msg_timeout_ms=60_000) as nsqd:
        clock = ManualClock()
        options = ToFileOptions(topic=("t",), nsqd_tcp_address=(nsqd.address,), output_dir=str(tmp_path))
        stop_asked = asyncio.Event()
        running = asyncio.create_task(Archive(options, clock=clock).run(stop_asked))
        await until(lambda: "RDY 200" in nsqd.commands)
        nsqd.send(b"x")
        await until(lambda: any(tmp_path.iterdir()))
        clock.advance(seconds=31)
        advance(15)  # a quarter of the time a message has, in which they are looked through
        await until(lambda: "TOUCH" in nsqd.commands)
        stop_asked.set()
        await running
        assert nsqd.commands[-1] == "FIN"


async def test_a_file_that_fails_ends_the_program_and_the_other_topics_in_order(tmp_path: Path) -> None:
    async with Embedded(with_lookupd=False) as nsq:
        rig = Rig(nsq, tmp_path, topic=("good", "bad"), max_in_flight=100)
        (tmp_path / "bad").mkdir()  # where the file should be
        running = asyncio.create_task(rig.archive.run(rig.stop_asked))
        await rig.publish("good", b"1")
        await rig.archived("good", b"1\n")
        await rig.publish("bad", b"2")
        with pytest.raises(ToolError, match=rf"^{tmp_path}/bad: Is a directory$"):
            await running
        assert [depth(nsq, topic) for topic in ("good", "bad")] == [0, 1]


async def test_folders_that_cannot_be_used_are_told_at_the_start(tmp_path: Path) -> None:
    async with Embedded(with_lookupd=False) as nsq:
        (tmp_path / "file").write_bytes(b"")
        rig = Rig(nsq, tmp_path / "file" / "out", topic=("t",))
        with pytest.raises(ToolError, match="Not a directory"):
            await rig.archive.run(rig.stop_asked)


async def test_a_work_dir_on_another_filesystem_is_refused(tmp_path: Path) -> None:
    folders = [Path("/dev/shm"), Path("/var/tmp")]
    others = [folder for folder in folders if folder.is_dir() and folder.stat().st_dev != tmp_path.stat().st_dev]
    if not others:
        pytest.skip("needs two filesystems")
    async with Embedded(with_lookupd=False) as nsq:
        rig = Rig(nsq, tmp_path, topic=("t",), work_dir=str(others[0]), filename_format="<TOPIC><REV>")
        with pytest.raises(ToolError, match=r"must be on one filesystem$"):
            await rig.archive.run(rig.stop_asked)
