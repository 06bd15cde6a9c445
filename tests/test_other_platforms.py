"""Windows and macOS, as far as they can be had here: a fresh interpreter without what their Python lacks.

The client, the tools and the commands that talk to a cluster run on all three systems, the daemons on Linux and macOS.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from emberq.embedded import EmbeddedThread
from quality.twin import SOURCE
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
EXTRAS = {"emberq.client.opentelemetry", "emberq.client.prometheus"}
FOR_WINDOWS = ("client", "cluster", "tools")
COMMANDS = ("bench", "completion", "context", "manual", "peek", "pub", "requeue_dead", "tail", "top", "topic")


def run(system: str, function: str, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.as_on", system, function, *words]
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT
    )


def modules_for_windows() -> list[str]:
    paths = [path for folder in FOR_WINDOWS for path in (SOURCE / folder).rglob("*.py")]
    names = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths
    }
    return sorted({*names, "emberq.sync", *(f"emberq.cli.{name}" for name in COMMANDS)} - EXTRAS)


def test_client_and_commands_are_imported_on_windows() -> None:
    ended = run("windows", "tests.support.as_on:imports", *modules_for_windows())
    assert ended.returncode == 0, ended.stderr


def test_messages_go_round_on_windows(nsq: EmbeddedThread, tmp_path: Path) -> None:
    (address,) = nsq.nsqd_tcp_addresses
    here = f"--nsqd-tcp-address={address}"
    assert run("windows", "tests.support.as_on:round_trip", address).stdout == "hello world\n"
    published = run("windows", "emberq.cli.main:main", "pub", "t", "one", here)
    assert published.returncode == 0, published.stderr
    sent = run("windows", "emberq.cli.main:main", "to_nsq", "--topic=t", here, typed="two\n")
    assert sent.returncode == 0, sent.stderr
    tailed = run("windows", "emberq.cli.main:main", "nsq_tail", "--topic=t", "--channel=c", here, "--n=2")
    assert sorted(tailed.stdout.split()) == ["one", "two"], tailed.stderr


def test_a_daemon_says_in_one_sentence_that_windows_is_not_enough() -> None:
    for words in (("emberq.cli.daemons:nsqd",), ("emberq.cli.main:main", "up")):
        ended = run("windows", *words)
        assert ended.returncode == 1
        assert "needs Linux or macOS. On Windows it runs in WSL or in a container.\n" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_messages_go_through_an_nsqd_on_macos() -> None:
    ended = run("macos", "tests.support.as_on:embedded")
    assert ended.stdout == "hello world\n", ended.stderr


@pytest.mark.parametrize(("system", "is_wanted"), [("win32", False), ("darwin", True), ("linux", True)])
def test_uvloop_is_wanted_where_it_can_be_installed(system: str, is_wanted: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (uvloop,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "uvloop")
    assert (uvloop.marker is None or uvloop.marker.evaluate({"sys_platform": system})) == is_wanted


def test_a_unix_socket_is_refused_on_windows() -> None:
    ended = run("windows", "emberq.cli.main:main", "pub", "t", "hello", "--nsqd-tcp-address=/run/nsqd.sock")
    assert ended.returncode == 1
    assert "Windows has no Unix sockets" in ended.stderr
