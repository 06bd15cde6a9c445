"""What is done to data folders while no nsqd runs on them: damage in every kind of file, and the layout of the Go nsqd.

DamageLab     a specimen with all kinds of files is copied, one bit of one file is flipped or its end is cut off, and
              nsqd is started on the copy: it serves what it can, or refuses and names the file. It never invents.
HandoverLab   a folder as the Go nsqd leaves it is taken over, used and stopped; a reader that shares no code with
              emberq finds exactly what should be there, goes on as Go would, and hands it back again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import select
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.history import DAMAGED, body_of, key_of
from tests.chaos.node import NsqdLife, StartRefusedError
from tests.chaos.shim import OsFaults, Shim, compile_shim
from tests.conformance.disk_files import data_file, meta_file, read_records, record, write_metadata, write_queue
from tests.support.held_port import hold_port
from tests.support.http_client import HttpClient
from tests.support.raw_client import HEARTBEAT, MESSAGE, Client, parse_message

BATCH = 20
JOURNALED, CLASSIC = "lab-log", "lab-queue"
JOURNALED_BATCHES = 240
"""So that the journal has more than one segment."""
CLASSIC_BATCHES = 20
CHANNELS = ("a", "b")
FLAGS = (
    "--journal-topic=-log$",
    "--journal-segment-bytes=1048576",
    "--mem-queue-size=0",
    "--max-bytes-per-file=65536",
    "--min-free-bytes=0",
)
IDLE_S = 0.5
"""A channel that has sent nothing for so long has nothing more to send, if it says so too."""
STUCK_S = 10.0
"""The same for one that says that it has more, as it may if its files are damaged. A busy machine is not so slow."""
LEAVING_S = 5.0
SECTOR_BYTES = 4096
PUT_OFF_MS = 600_000
GO_TOPIC, GO_CHANNEL = "go-queue", "c"


class LabNsqd:
    """An nsqd on a folder of a lab; an asynchronous context manager that stops it as an operator would."""

    def __init__(self, data_path: Path, log_path: Path, *flags: str, shim: Shim | None = None) -> None:
        self._data_path = data_path
        self._log_path = log_path
        self._flags = flags
        self._environment = shim.environment if shim is not None else None
        self._ports = ExitStack()
        self.life: NsqdLife

    async def __aenter__(self) -> LabNsqd:
        self.tcp_port, self.http_port = (self._ports.enter_context(hold_port()) for _ in range(2))
        self.life = NsqdLife(
            self._data_path,
            self._log_path,
            tcp_port=self.tcp_port,
            http_port=self.http_port,
            flags=self._flags,
            environment=self._environment,
        )
        try:
            await self.life.wait_until_listening()
        except BaseException:
            self._ports.close()
            raise
        return self

    async def __aexit__(self, kind: object, *_raised: object) -> None:
        try:
            status = await self.life.terminate()
            if kind is None:
                assert status == 0, f"exit status {status} after SIGTERM:\n{self.life.log[-1500:]}"
                assert "Traceback" not in self.life.log, self.life.log[-3000:]
        finally:
            self._ports.close()

    async def take(self, topic: str, channel: str, *, at_most: int, finish_every: int = 1) -> list[bytes]:
        """The bodies of what a channel has, until it is silent; each so manieth is finished, the others come again."""
        return await asyncio.to_thread(self._take, topic, channel, at_most, finish_every)

    def _take(self, topic: str, channel: str, at_most: int, finish_every: int) -> list[bytes]:
        client = Client(("127.0.0.1", self.tcp_port))
        bodies: list[bytes] = []
        try:
            client.sub(topic, channel)
            client.rdy(min(at_most, 1000))
            while len(bodies) < at_most and self._sends_more(client, topic, channel):
                frame = client.read_frame()
                if frame.type == MESSAGE:
                    message = parse_message(frame.data)
                    bodies.append(message.body)
                    if len(bodies) % finish_every == 0:
                        client.fin(message)
                elif frame.data == HEARTBEAT:
                    client.nop()
        finally:
            _leave(client)
        return bodies

    def _sends_more(self, client: Client, topic: str, channel: str) -> bool:
        """Wait for something to read; False if nothing more is to be expected."""
        ends_s = time.monotonic() + STUCK_S
        while not select.select([client.socket], [], [], IDLE_S)[0]:
            if time.monotonic() > ends_s or not self._left(topic, channel):
                return False
        return True

    def _left(self, topic: str, channel: str) -> int:
        """How many messages wait for a consumer, or for its answer."""
        asked = f"/stats?format=json&topic={topic}&channel={channel}"
        (found,) = HttpClient(("127.0.0.1", self.http_port)).get(asked).json()["topics"]
        parts = [found, *found["channels"]]
        return sum(part["depth"] + part.get("in_flight_count", 0) for part in parts)


def _leave(client: Client) -> None:
    """End a connection so that its last FINs arrive: a close with unread bytes is a reset, which may lose them."""
    with contextlib.suppress(OSError):
        client.half_close()
        client.socket.settimeout(LEAVING_S)
        client.frames_until_eof()
    client.close()


@dataclass(frozen=True)
class FileKind:
    """A kind of file in a data folder."""

    name: str
    pattern: str
    may_change_bodies: bool = False
    """NSQ's records have no checksum: a bit that flips in a body is delivered as it is."""
    may_lose: bool = True


FILE_KINDS = (
    FileKind("nsqd.dat", "nsqd.dat"),
    FileKind("policies", "channel-policies.json", may_lose=False),
    FileKind("journal identity", "*.journal/journal.json", may_lose=False),
    FileKind("segment", "*.journal/*.log"),
    FileKind("segment index", "*.journal/*.idx", may_lose=False),
    FileKind("cursor", "*.journal/cursors/*"),
    FileKind("disk queue data", "*.diskqueue.0*.dat", may_change_bodies=True),
    FileKind("disk queue meta", "*.diskqueue.meta.dat"),
    FileKind("due times", "*.diskqueue.due.dat", may_lose=False),
)


class DamageLab:
    """Damages copies of a specimen, one kind of file after the other."""

    def __init__(self, folder: Path, *, journaled_batches: int = JOURNALED_BATCHES) -> None:
        """Sectors that cannot be read need a C compiler."""
        self.findings: list[str] = []
        """What each damage came to, in a line."""
        self._batches = {JOURNALED: journaled_batches, CLASSIC: CLASSIC_BATCHES}
        self._folder = folder
        self._specimen = folder / "specimen"
        self._rounds = 0
        folder.mkdir(parents=True)
        library = compile_shim(folder)
        self._shim = Shim(library, folder / "faults") if library is not None else None

    async def visit(self, dice: random.Random, *, kinds: Sequence[FileKind] = FILE_KINDS) -> None:
        """One damage in each kind of file."""
        if not self._specimen.exists():
            await self._make_specimen(dice)
        broken: list[str] = []
        for kind in kinds:
            try:
                await self.damage(kind, dice)
            except AssertionError as error:
                broken.append(str(error))
        assert not broken, "\n".join(broken)

    async def _make_specimen(self, dice: random.Random) -> None:
        self._rounds += 1
        path = self._folder / f"specimen-{self._rounds}.new"
        path.mkdir()
        async with LabNsqd(path, self._folder / "specimen.log", *FLAGS) as nsqd:
            for topic in (JOURNALED, CLASSIC):
                await nsqd.life.post("/topic/create", topic=topic)
                for channel in CHANNELS:
                    await nsqd.life.post("/channel/create", topic=topic, channel=channel)
                for number in range(self._batches[topic]):
                    serials = range(number * BATCH, (number + 1) * BATCH)
                    lines = b"\n".join(body_of(topic, f"1.{serial}") for serial in serials)
                    await nsqd.life.post("/mpub", lines, topic=topic)
                await nsqd.life.post("/pub", body_of(topic, "2.0"), topic=topic, defer=PUT_OFF_MS)
                policy = b'{"max_attempts":60000,"dead_letter_topic":"lab-dead"}'
                await nsqd.life.post("/channel/policy", policy, topic=topic, channel="a")
                await nsqd.take(topic, "a", at_most=dice.randint(50, 200), finish_every=3)
        path.rename(self._specimen)

    async def damage(self, kind: FileKind, dice: random.Random) -> None:
        """Damage one file of this kind in a copy, and start nsqd on it. AssertionError if it breaks a promise."""
        self._rounds += 1
        copy = self._folder / f"copy-{self._rounds}"
        await asyncio.to_thread(shutil.copytree, self._specimen, copy)
        files = sorted(path for path in copy.glob(kind.pattern) if path.stat().st_size)
        assert files, f"the specimen has no {kind.name}"
        path = dice.choice(files)
        harm = self._harm(path, dice)
        case = f"{kind.name}: {path.relative_to(copy)} {harm}"
        log_path = self._folder / f"copy-{self._rounds}.log"
        try:
            result = await self._try(copy, log_path, kind)
        except (StartRefusedError, OSError) as error:
            # It listens while it starts, so it may end when it has been asked already.
            result = _refusal(log_path.read_text(errors="replace"), path, case=f"{case} ({error!r})"[:300])
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
        finally:
            if self._shim is not None:
                self._shim.heal()
        self.findings.append(f"{case}: {result}")
        await asyncio.to_thread(shutil.rmtree, copy)

    async def _try(self, copy: Path, log_path: Path, kind: FileKind) -> str:
        missing = 0
        async with LabNsqd(copy, log_path, *FLAGS, shim=self._shim) as nsqd:
            known = set(await nsqd.life.channels())
            for topic in (JOURNALED, CLASSIC):
                for channel in CHANNELS:
                    if (topic, channel) not in known:
                        continue
                    total = BATCH * self._batches[topic]
                    bodies = await nsqd.take(topic, channel, at_most=3 * total)
                    strange = [body for body in bodies if key_of(topic, body) == DAMAGED]
                    allowed = 1 if kind.may_change_bodies and topic == CLASSIC else 0
                    assert len(strange) <= allowed, f"{topic}/{channel} invented {strange[:3]}"
                    if channel == "b":  # of which nothing was finished
                        missing += total - len({key_of(topic, body) for body in bodies} & _keys(total))
        assert kind.may_lose or not missing, f"{missing} messages are missing"
        is_told = "ERROR: " in nsqd.life.log or "WARNING: " in nsqd.life.log
        is_told |= kind.may_change_bodies
        assert is_told or not missing, f"{missing} messages are missing, and the log does not complain"
        return f"served, {missing} messages missing"

    def _harm(self, path: Path, dice: random.Random) -> str:
        """Flip a bit of a file, cut its end off, or make a sector of it unreadable; what was done, in words."""
        content = bytearray(path.read_bytes())
        at = dice.randrange(len(content))
        way = dice.random()
        if way < 0.5:
            bit = dice.randrange(8)
            content[at] ^= 1 << bit
            path.write_bytes(content)
            return f"bit {bit} of byte {at} of {len(content)} flipped"
        if way < 0.8 or self._shim is None:
            path.write_bytes(content[:at])
            return f"cut from {len(content)} to {at} bytes"
        sector = at // SECTOR_BYTES * SECTOR_BYTES
        bad = (sector, sector + SECTOR_BYTES)
        self._shim.set(OsFaults(str(path), read_errno=errno.EIO, bad_positions=bad))
        return f"unreadable from {sector} to {sector + SECTOR_BYTES} of {len(content)} bytes"


def _refusal(log: str, path: Path, *, case: str) -> str:
    """What a refusal to start came to. AssertionError if it does not say in one line what is wrong with which file."""
    fatal = [line for line in log.splitlines() if "FATAL: " in line]
    assert fatal, f"{case}: nsqd neither serves nor refuses:\n{log[-3000:]}"
    assert "Traceback" not in log, f"{case}: a traceback instead of a refusal:\n{log[-3000:]}"
    assert path.name in fatal[-1] or path.parent.name in fatal[-1], f"{case}: the file is not named: {fatal[-1]}"
    return "refused, and named the file"


def _keys(total: int) -> set[str]:
    return {f"1.{serial}" for serial in range(total)}


# The layout of the Go nsqd.


class HandoverLab:
    """Takes a folder of the Go nsqd over and hands it back, again and again."""

    def __init__(self, folder: Path) -> None:
        self.findings: list[str] = []
        self._folder = folder
        self._rounds = 0
        folder.mkdir(parents=True)

    async def visit(self, dice: random.Random) -> None:
        self._rounds += 1
        data_path = self._folder / f"data-{self._rounds}"
        data_path.mkdir()
        serial = dice.randint(20, 200)
        owed = [body_of(GO_TOPIC, f"1.{number}") for number in range(serial)]
        _lay_out(data_path, owed, dice)
        for turn in range(2):
            log_path = self._folder / f"data-{self._rounds}-{turn}.log"
            async with LabNsqd(data_path, log_path, f"--mem-queue-size={dice.choice((0, 1000))}") as nsqd:
                taken = await nsqd.take(GO_TOPIC, GO_CHANNEL, at_most=dice.randint(1, len(owed)))
                assert not set(taken) - set(owed), "messages that were not in the folder"
                owed = [body for body in owed if body not in set(taken)]
                more = [body_of(GO_TOPIC, f"{turn + 2}.{number}") for number in range(dice.randint(1, 100))]
                await nsqd.life.post("/mpub", b"\n".join(more), topic=GO_TOPIC)
                owed += more
            _check_same(_read_as_go(data_path), owed)
            owed = _go_on_as_go(data_path, owed, body_of(GO_TOPIC, f"9.{turn}"))
        self.findings.append(f"{len(owed)} messages were handed to and fro")
        await asyncio.to_thread(shutil.rmtree, data_path)


def _check_same(found: Iterable[bytes], owed: Iterable[bytes]) -> None:
    found, owed = sorted(found), sorted(owed)
    assert found == owed, f"the files hold {len(found)} messages instead of {len(owed)}"


def _lay_out(data_path: Path, bodies: list[bytes], dice: random.Random) -> None:
    """A folder as Go leaves it: a topic with a channel, whose queue fills two files."""
    channel = {"name": GO_CHANNEL, "paused": False}
    write_metadata(data_path, [{"name": GO_TOPIC, "paused": False, "channels": [channel]}])
    split = dice.randint(1, len(bodies) - 1)
    end = sum(len(record(0, body)) for body in bodies[split:])
    meta = f"{len(bodies)}\n0,0\n1,{end}\n"
    write_queue(data_path, f"{GO_TOPIC}:{GO_CHANNEL}", [bodies[:split], bodies[split:]], meta=meta)


def _place(line: str) -> tuple[int, int]:
    number, position = line.split(",")
    return int(number), int(position)


def _read_as_go(data_path: Path) -> list[bytes]:
    """The bodies that wait in the queues of topic and channel, as Go would read them, from the meta file's places."""
    bodies: list[bytes] = []
    for queue in (GO_TOPIC, f"{GO_TOPIC}:{GO_CHANNEL}"):
        if not meta_file(data_path, queue).exists():
            continue
        depth, read, write = meta_file(data_path, queue).read_text().splitlines()
        (first, start), (last, end) = _place(read), _place(write)
        waiting: list[bytes] = []
        for number in range(first, last + 1):
            path = data_file(data_path, queue, number)
            if not path.exists():
                assert (number, 0) == (last, end), f"{path.name} is missing"
                continue
            skipped, until = start if number == first else 0, end if number == last else path.stat().st_size
            part = path.with_suffix(".part")
            part.write_bytes(path.read_bytes()[skipped:until])
            waiting += [message.body for message in read_records(part)]
            part.unlink()
        assert len(waiting) == int(depth), f"{queue} has a depth of {depth} and {len(waiting)} records"
        bodies += waiting
    return bodies


def _go_on_as_go(data_path: Path, owed: list[bytes], body: bytes) -> list[bytes]:
    """Append one message to the channel's queue, as a Go nsqd would that ran in between; what is owed then."""
    queue = f"{GO_TOPIC}:{GO_CHANNEL}"
    depth, read, write = meta_file(data_path, queue).read_text().splitlines()
    number, end = _place(write)
    added = record(number + 1_000_000, body)
    path = data_file(data_path, queue, number)
    content = path.read_bytes()[:end] if path.exists() else b""
    path.write_bytes(content + added)
    meta_file(data_path, queue).write_text(f"{int(depth) + 1}\n{read}\n{number},{end + len(added)}\n")
    return [*owed, body]
