"""The nsq_to_file command as a user meets it: its files, its log, its exit status, and what a kill -9 leaves behind."""

from __future__ import annotations

import random
import re
import resource
import signal
import socket
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from emberq.base.clock import NS_PER_SECOND
from tests.support.embedded import Broker
from tests.support.fork_server import PIPE, ForkedProcess, run_forked_text
from tests.support.waiting import PATIENCE_S, wait_until

TIME = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d"


def nsq_to_file(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return run_forked_text("nsq_to_file", *flags)


class Running:
    """nsq_to_file at work on the topic `t`; a context manager that kills it unless the test ended it."""

    def __init__(self, broker: Broker, folder: Path, *flags: str) -> None:
        arguments = [f"--nsqd-tcp-address={broker.tcp_address}", f"--output-dir={folder}", "--topic=t", *flags]
        self.process = ForkedProcess("nsq_to_file", *arguments, stderr=PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit status and log."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        return self.process.wait(PATIENCE_S), self.process.stderr.read().decode()


def size_of(folder: Path) -> int:
    """Of all files in the folder and below it; one that is moved meanwhile may not count."""
    size = 0
    for path in list(folder.rglob("*")):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


# What it says and how it exits.


def test_version_is_printed_on_standard_output() -> None:
    done = nsq_to_file("--version")
    assert re.fullmatch(r"nsq_to_file v1\.3\.0-emberq \(built w/python3\.\d+\.\d+\S*\)\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_goes_to_standard_output_with_status_0() -> None:
    done = nsq_to_file("-h")
    assert done.stdout.startswith("Usage of nsq_to_file:\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_flag_is_named_with_status_2() -> None:
    done = nsq_to_file("-nope")
    assert done.stderr == "flag provided but not defined: -nope\n  nsq_to_file --help lists all flags.\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--topic=t", "more", "words"], "unknown arguments: [more words]"),
        (["--topic=t", "--log-level=loud"], "--log-level is invalid"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required."),
    ],
)
def test_options_that_cannot_work_are_one_line_and_status_1(flags: list[str], complaint: str) -> None:
    done = nsq_to_file(*flags)
    assert re.fullmatch(rf"{TIME} {re.escape(complaint)}\n", done.stderr)
    assert (done.returncode, done.stdout) == (1, "")


# What it writes.


@pytest.mark.conformance(262)
def test_three_messages_are_three_lines_of_the_file_of_this_hour(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", [b"one", b"two", b"three"])
    with Running(broker, tmp_path) as running:
        wait_until(lambda: size_of(tmp_path) == 14)
        status, log = running.end()
    assert status == 0
    (path,) = tmp_path.iterdir()
    host = re.escape(socket.gethostname().partition(".")[0])
    assert re.fullmatch(rf"t\.{host}\.\d{{4}}-\d\d-\d\d_\d\d\.log", path.name)
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert broker.unfinished("t") == 0
    prefix = rf"\[nsq_to_file\] {TIME}\.\d{{6}} INFO: "
    connected = rf"{prefix}connected to nsqd [0-9.:]+, t/nsq_to_file\n"
    assert re.fullmatch(rf"{connected}{prefix}\[t/nsq_to_file\] opening {re.escape(str(path))}\n", log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(broker: Broker, tmp_path: Path, number: signal.Signals) -> None:
    broker.publish("t", [b"x"])
    work, output = tmp_path / "work", tmp_path / "output"
    with Running(broker, output, f"--work-dir={work}", "--gzip", "--log-level=error") as running:
        wait_until(lambda: size_of(work) > 0)
        assert running.end(number) == (0, "")
    assert (size_of(work), broker.unfinished("t")) == (0, 0)
    assert lines_of(output) == [b"x"]


def test_sighup_closes_the_file_and_goes_on_with_the_next(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", [b"before"])
    with Running(broker, tmp_path, "--filename-format=<TOPIC><REV>", "--rotate-interval=1h") as running:
        wait_until(lambda: size_of(tmp_path) > 0)
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: broker.unfinished("t") == 0 and len(list(tmp_path.iterdir())) == 2)
        broker.publish("t", [b"after"])
        wait_until(lambda: (tmp_path / "t-000001").read_bytes() == b"after\n")
        assert running.end()[0] == 0
    assert (tmp_path / "t-000000").read_bytes() == b"before\n"


def test_a_full_disk_is_told_and_costs_no_message(broker: Broker) -> None:
    broker.publish("t", [b"x", b"y"])
    with Running(broker, Path("/dev"), "--filename-format=full") as running:
        status, log = running.wait()
    assert status == 1
    assert re.search(rf"\[nsq_to_file\] {TIME}\.\d{{6}} FATAL: /dev/full: No space left on device\n\Z", log)
    wait_until(lambda: broker.unfinished("t") == 2)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are a thing of Linux")
def test_a_file_that_may_not_grow_is_continued_behind_its_torn_line_later(broker: Broker, tmp_path: Path) -> None:
    with Running(broker, tmp_path, "--filename-format=f") as running:
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (31, 31))
        broker.publish("t", [b"%02d" % number for number in range(20)])  # now that it has nothing to write before
        status, log = running.wait()
    assert status == 1
    assert "/f: File too large\n" in log
    with Running(broker, tmp_path, "--filename-format=f") as running:
        wait_until(lambda: len((tmp_path / "f").read_bytes().splitlines()) >= 11 + 20)  # all have come again
        assert running.end()[0] == 0
    lines = (tmp_path / "f").read_bytes().splitlines()
    assert lines[:11] == [b"%02d" % number for number in range(10)] + [b"1"]
    assert set(lines) >= {b"%02d" % number for number in range(20)}
    assert broker.unfinished("t") == 0


# kill -9.


def lines_of(folder: Path) -> list[bytes]:
    """The lines of all files, as far as they can be read."""
    content = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            content.append(b"".join(whole_members(data)) if path.suffix == ".gz" else data)
    return [line for text in content for line in text.splitlines()]


def whole_members(data: bytes) -> Iterator[bytes]:
    """The content of each complete member of a gzip file."""
    while data:
        member = zlib.decompressobj(wbits=31)
        content = member.decompress(data)
        if not member.eof:
            return
        yield content
        data = member.unused_data


KILL_COUNT = 6
MESSAGE_COUNT = 4000
GROWTH_BYTES = 4000
"""How much the files may grow before a run is killed: so little that messages are left for the last one."""


@pytest.mark.nsq(msg_timeout_ns=NS_PER_SECOND)  # nsqd brings what died with a consumer again only after this time
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--gzip"],
        ["--rotate-size=5000"],
        ["--gzip", "--rotate-size=5000", "--work-dir=work"],
    ],
    ids=" ".join,
)
def test_kill_9_never_costs_a_message(broker: Broker, tmp_path: Path, flags: list[str]) -> None:
    bodies = [b"message %06d" % number for number in range(MESSAGE_COUNT)]
    broker.publish("t", bodies)
    chance = random.Random(" ".join(flags))
    flags = [flag.replace("=work", f"={tmp_path / 'work'}") for flag in flags]
    for _ in range(KILL_COUNT):
        enough = size_of(tmp_path) + chance.randrange(GROWTH_BYTES)
        with Running(broker, tmp_path / "out", "--max-in-flight=5", *flags) as running:  # few, so there are many syncs
            wait_until(lambda: size_of(tmp_path) > enough)  # noqa: B023 - it waits here
            assert running.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert broker.unfinished("t") > 0, "it was killed too late to show anything"
    with Running(broker, tmp_path / "out", "--sync-interval=50ms", *flags) as running:
        wait_until(lambda: broker.unfinished("t") == 0)
        assert running.end()[0] == 0
    assert set(lines_of(tmp_path)) >= set(bodies)
