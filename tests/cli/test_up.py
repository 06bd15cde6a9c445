"""`emberq up` as a user meets it: the banner, what runs behind it, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.support.command import require_command
from tests.support.fork_server import ForkedProcess, run_forked_text
from tests.support.http_client import HttpClient
from tests.support.raw_client import Client
from tests.support.waiting import PATIENCE_S, wait_until

PORT_FLAGS = ("--nsqd-tcp-port", "--nsqd-http-port", "--lookupd-tcp-port", "--lookupd-http-port", "--admin-http-port")
FREE_PORTS = [f"{flag}=0" for flag in PORT_FLAGS]
PORT_STEP = 100
"""Between the ports of two nsqds."""
ROW = re.compile(r"^  (nsqlookupd|nsqd) +tcp 127\.0\.0\.1:(\d+) +http://127\.0\.0\.1:(\d+)$", re.MULTILINE)

ADVICE = "Another nsqd or nsqlookupd may be running. Stop it, or choose other ports: emberq up --help"

StartUp = Callable[..., "RunningStack"]


class Daemon(NamedTuple):
    """A row of the banner."""

    name: str
    tcp_port: int
    http_port: int

    @property
    def http(self) -> HttpClient:
        return HttpClient(("127.0.0.1", self.http_port))

    def next_body(self, topic: str) -> bytes:
        """The next message that a consumer of this nsqd gets."""
        with closing(Client(("127.0.0.1", self.tcp_port))) as consumer:
            consumer.sub(topic, "c")
            consumer.rdy(1)
            message = consumer.read_message()
            consumer.fin(message)
            return message.body


class RunningStack:
    """`emberq up` in a folder of its own; a context manager that stops it unless the test already did."""

    def __init__(self, *flags: str, folder: Path) -> None:
        self._output_path = folder / "stdout"
        self._errors_path = folder / "stderr"
        with self._output_path.open("wb") as output, self._errors_path.open("wb") as errors:
            self._process = ForkedProcess(
                *("up", *FREE_PORTS, *flags), folder=folder, stdout=output, stderr=errors, is_alone=True
            )

    def __enter__(self) -> Self:
        wait_until(lambda: "/lookup?" in self.output or self._process.poll() is not None)
        assert "emberq is up" in self.output, self.errors
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._process.poll() is None:
            assert self.press_ctrl_c() == 0, self.errors

    @property
    def output(self) -> str:
        return self._output_path.read_text()

    @property
    def errors(self) -> str:
        return self._errors_path.read_text()

    @property
    def commands(self) -> list[str]:
        """What the banner has one try."""
        return [line.strip() for line in self.output.splitlines() if line.startswith("  curl ")]

    @property
    def nsqds(self) -> list[Daemon]:
        return [daemon for daemon in self._daemons if daemon.name == "nsqd"]

    @property
    def nsqlookupd(self) -> Daemon:
        (found,) = (daemon for daemon in self._daemons if daemon.name == "nsqlookupd")
        return found

    @property
    def _daemons(self) -> list[Daemon]:
        return [Daemon(name, int(tcp_port), int(http_port)) for name, tcp_port, http_port in ROW.findall(self.output)]

    @property
    def child_pids(self) -> list[int]:
        """The processes that it started."""
        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def press_ctrl_c(self) -> int:
        """What a terminal does: a signal to the whole process group. Returns the exit status."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self.exit_status()

    def kill(self) -> None:
        """The process itself, which can do nothing about it."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def exit_status(self) -> int:
        """Wait for its end."""
        return self._process.wait(PATIENCE_S)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def run_to_its_end(*flags: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an `emberq up` that is expected to refuse."""
    return run_forked_text("up", *FREE_PORTS, *flags, folder=folder)


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    """Starts `emberq up` with the given flags on free ports, always in the test's folder."""
    with ExitStack() as running:
        yield lambda *flags: running.enter_context(RunningStack(*flags, folder=tmp_path))


@pytest.fixture(scope="module", params=[1, 2])
def nsqd_count(request: pytest.FixtureRequest) -> int:
    """How many nsqds `stack` has."""
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def stack(nsqd_count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """`emberq up` with one nsqd, and with two, for all tests that leave it running; each has a topic of its own."""
    with RunningStack(f"--nsqd={nsqd_count}", folder=tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which something else listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        yield port


@pytest.fixture
def port_below_a_taken_one() -> Iterator[int]:
    """A free port; on the one that a second nsqd would get besides, something else listens.

    Both are below those that the system gives to whoever asks for any, as all other tests do.
    """
    for port in range(20_000, 30_000):
        try:
            socket.create_server(("127.0.0.1", port)).close()
            listening = socket.create_server(("127.0.0.1", port + PORT_STEP))
        except OSError:
            continue
        with listening:
            yield port
        return


# While it runs.


def test_the_addresses_in_the_banner_are_served(stack: RunningStack, nsqd_count: int) -> None:
    assert len(stack.nsqds) == nsqd_count
    for number, nsqd in enumerate(stack.nsqds):
        assert nsqd.http.post("/pub?topic=served", b"hello %d" % number).text == "OK"
        assert nsqd.next_body("served") == b"hello %d" % number


def test_its_nsqlookupd_finds_the_topics_of_every_nsqd(stack: RunningStack) -> None:
    for nsqd in stack.nsqds:
        nsqd.http.post("/topic/create?topic=found")

    def found() -> set[tuple[str, int]]:
        answer = stack.nsqlookupd.http.get("/lookup?topic=found")
        producers = answer.json()["producers"] if answer.status == 200 else []
        return {(producer["broadcast_address"], producer["tcp_port"]) for producer in producers}

    wait_until(lambda: found() == {("127.0.0.1", nsqd.tcp_port) for nsqd in stack.nsqds})


def test_topics_are_journaled_unless_told_otherwise(stack: RunningStack, start_up: StartUp, nsqd_count: int) -> None:
    for nsqd in stack.nsqds:
        nsqd.http.post("/pub?topic=journaled", b"hello")
        assert nsqd.http.get("/journal?topic=journaled").json()["next_offset"] == 1
    classic = start_up(f"--nsqd={nsqd_count}", "--no-journal")
    for nsqd in classic.nsqds:
        nsqd.http.post("/pub?topic=journaled", b"hello")
        assert nsqd.http.get("/journal?topic=journaled").error == (404, "TOPIC_NOT_JOURNALED")


def test_it_serves_on_an_ipv6_address(start_up: StartUp) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    stack = start_up("--host=::1")
    assert re.search(r"^  nsqd +tcp \[::1\]:\d+ +http://\[::1\]:\d+$", stack.output, re.MULTILINE)


def test_the_commands_in_the_banner_work_as_typed(stack: RunningStack) -> None:
    require_command("curl")

    def typed(command: str) -> str:
        arguments = [*shlex.split(command), "--silent", "--noproxy", "*"]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout

    publish, show_stats, look_up = stack.commands
    assert typed(publish) == "OK"
    assert "greetings" in typed(show_stats)
    wait_until(lambda: len(json.loads(typed(look_up)).get("producers", [])) == 1)


def test_several_nsqds_are_processes_of_their_own(stack: RunningStack, nsqd_count: int) -> None:
    assert len(stack.child_pids) == (0 if nsqd_count == 1 else nsqd_count)


# How it ends.


@pytest.mark.parametrize("nsqd_count", [1, 2])
def test_messages_outlive_ctrl_c(start_up: StartUp, nsqd_count: int, tmp_path: Path) -> None:
    stack = start_up(f"--nsqd={nsqd_count}")
    for number, nsqd in enumerate(stack.nsqds):
        nsqd.http.post("/pub?topic=greetings", b"hello %d" % number)
    assert stack.press_ctrl_c() == 0
    assert (tmp_path / "emberq-data" / "nsqd-0" / "nsqd.dat").is_file()
    again = start_up(f"--nsqd={nsqd_count}")
    for number, nsqd in enumerate(again.nsqds):
        assert nsqd.next_body("greetings") == b"hello %d" % number


@pytest.mark.parametrize("nsqd_count", [1, 2])
def test_ctrl_c_ends_every_process_and_says_where_the_messages_are(start_up: StartUp, nsqd_count: int) -> None:
    stack = start_up(f"--nsqd={nsqd_count}")
    children = stack.child_pids
    assert stack.press_ctrl_c() == 0
    assert not any(is_running(child) for child in children)
    assert stack.output.endswith("\nStopped. Messages are in emberq-data.\n")
    assert stack.errors == ""


def test_an_nsqd_that_is_killed_ends_the_whole_stack_with_status_1(start_up: StartUp) -> None:
    stack = start_up("--nsqd=2")
    first, second = stack.child_pids
    os.kill(first, signal.SIGKILL)
    assert stack.exit_status() == 1
    assert not is_running(second)
    assert re.search(r"ERROR: nsqd-[01] ended with status -9\n", stack.errors)
    assert stack.output.endswith("\nStopped after a failure.\n")


def test_its_nsqds_end_by_themselves_when_it_is_killed(start_up: StartUp, tmp_path: Path) -> None:
    stack = start_up("--nsqd=2")
    children = stack.child_pids
    stack.nsqds[1].http.post("/pub?topic=greetings", b"hello")
    stack.kill()
    wait_until(lambda: not any(is_running(child) for child in children))
    assert (tmp_path / "emberq-data" / "nsqd-1" / "nsqd.dat").is_file()
    again = start_up("--nsqd=2")
    assert again.nsqds[1].next_body("greetings") == b"hello"


# How it refuses to start.


@pytest.mark.parametrize("flag", PORT_FLAGS)
def test_a_port_in_use_is_named_with_advice_and_status_1(tmp_path: Path, taken_port: int, flag: str) -> None:
    ended = run_to_its_end(f"{flag}={taken_port}", folder=tmp_path)
    complaint, advice = ended.stderr.splitlines()
    assert re.fullmatch(
        rf"emberq up: listen \(127\.0\.0\.1:{taken_port}\) failed - .*Address already in use", complaint
    )
    assert advice == ADVICE
    assert (ended.returncode, ended.stdout) == (1, "")


def test_a_port_in_use_for_one_of_several_nsqds_ends_them_all(tmp_path: Path, port_below_a_taken_one: int) -> None:
    ended = run_to_its_end("--nsqd=2", f"--nsqd-http-port={port_below_a_taken_one}", folder=tmp_path)
    assert f"listen (127.0.0.1:{port_below_a_taken_one + PORT_STEP}) failed" in ended.stderr
    assert (ended.returncode, ended.stdout) == (1, "")
    with RunningStack("--nsqd=2", folder=tmp_path) as again:  # which needs the folders that those had
        assert len(again.nsqds) == 2


def test_a_data_folder_that_another_stack_uses_is_refused(start_up: StartUp, tmp_path: Path) -> None:
    start_up()
    ended = run_to_its_end(folder=tmp_path)
    assert ended.stderr.startswith("emberq up: failed to lock data-path: cannot flock directory emberq-data/nsqd-0 - ")
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.parametrize("flag", ["--nsqd=0", "--nsqd=33", "--nsqd-tcp-port=65536"])
def test_a_number_out_of_range_is_one_line_and_status_1(tmp_path: Path, flag: str) -> None:
    ended = run_to_its_end(flag, folder=tmp_path)
    name, _, _ = flag.removeprefix("--").partition("=")
    assert re.fullmatch(rf"emberq up: .*{name}.*\n", ended.stderr)
    assert (ended.returncode, ended.stdout) == (1, "")


def test_an_unknown_flag_is_named_with_status_2(tmp_path: Path) -> None:
    ended = run_to_its_end("--nope", folder=tmp_path)
    assert ended.stderr.startswith("flag provided but not defined: -nope\n")
    assert ended.returncode == 2


def test_a_word_that_is_no_flag_is_a_mistake(tmp_path: Path) -> None:
    ended = run_to_its_end("two", "--nsqd=2", folder=tmp_path)
    assert ended.stderr == 'emberq up: it takes flags alone, and not "two"\n'
    assert ended.returncode == 2
