"""Everything that the README has its readers type works as it says, in order, against a real `emberq up` and Spark."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.console import Command, read_commands, run_command
from tests.docs.guide import IN_NO_HURRY, Block, read_blocks, run_script, run_service, run_tests
from tests.support.command import require_command
from tests.support.hurried_java import hurry_java
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SHOWN = {"nsqd-tcp": 4150, "nsqd-http": 4151, "lookupd-tcp": 4160, "lookupd-http": 4161, "admin-http": 4171}
BANNER = re.compile(r"127\.0\.0\.1:(\d+)")
DONE_BY_THE_TESTS = {"source .venv/bin/activate", "pip install pynsq"}
TIMEOUT_S = 400
"""Spark starts twice, perhaps beside other tests."""


@contextmanager
def running_stack(folder: Path) -> Iterator[dict[str, str]]:
    """`emberq up` on free ports; what to write in place of the addresses that readers see."""
    log_path = folder / "up.log"
    ports = [f"--{name}-port=0" for name in SHOWN]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "emberq.cli.main", "up", *ports], cwd=folder, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: "/lookup?" in log_path.read_text() or process.poll() is not None)
        lookupd_tcp, lookupd_http, nsqd_tcp, nsqd_http, admin = BANNER.findall(log_path.read_text())[:5]
        real = (nsqd_tcp, nsqd_http, lookupd_tcp, lookupd_http, admin)
        addresses = {
            f"127.0.0.1:{shown}": f"127.0.0.1:{port}" for shown, port in zip(SHOWN.values(), real, strict=True)
        }
        flags = {  # for commands that the README has use the default
            "emberq pub ": f"emberq pub --nsqd-tcp-address=127.0.0.1:{nsqd_tcp} ",
            "emberq archive ": f"emberq archive --nsqd-http-address=127.0.0.1:{nsqd_http} ",
        }
        yield addresses | flags
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(TIMEOUT_S)
def test_the_readme_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_command("curl")
    hurry_java(monkeypatch)
    with running_stack(tmp_path) as replacements:
        commands = read_commands(README.read_text(encoding="utf-8"))
        steps: list[Command | Block] = [*commands, *read_blocks(README, replacements=replacements | IN_NO_HURRY)]
        printed = {}
        for step in sorted(steps, key=lambda step: step.line):
            if isinstance(step, Block):
                run_block(step, tmp_path, nsqd_http_address=replacements["127.0.0.1:4151"])
            elif not step.words.startswith("make ") and step.words not in DONE_BY_THE_TESTS:
                printed[step.words.split(" -")[0]] = run_command(step, tmp_path, replacements=replacements)
        assert sum(json.loads(line)["messages"] for line in printed["emberq sql"].splitlines()) == 4


def run_block(block: Block, folder: Path, *, nsqd_http_address: str) -> None:
    match block.kind:
        case "script":
            run_script(block, folder)
        case "service":
            run_service(block, folder, nsqd_http_address=nsqd_http_address)
        case "test":
            run_tests(block, folder)
        case unknown:
            raise AssertionError(f"{block}: the README says {unknown!r}, which is no way to run a block")


def test_the_readme_names_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [command.words.split() for command in read_commands(README.read_text(encoding="utf-8"))]
    assert {words[1] for words in named if words[0] == "make"} <= targets


def test_the_readme_links_to_pages_that_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_a_command_that_prints_something_else_than_the_page_says_is_noticed(tmp_path: Path) -> None:
    good, free, wrong, failing = read_commands(
        "```console\n$ echo 12  # a remark\n1…\n$ echo anything\n$ echo 3\n4\n$ false\n```\n"
    )
    assert good == Command(2, "echo 12  # a remark", ["1…"])
    assert good.words == "echo 12"
    for command in (good, free):
        run_command(command, tmp_path, replacements={})
    for command in (wrong, failing):
        with pytest.raises(AssertionError):
            run_command(command, tmp_path, replacements={})
