"""The whole benchmark, for a moment, against our own nsqd."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.support import needs_compiler

pytestmark = needs_compiler

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)


def test_a_quick_run_measures_our_nsqd_and_leaves_nothing_behind(tmp_path: Path) -> None:
    results, folders = tmp_path / "results.json", tmp_path / "folders"
    folders.mkdir()
    done = bench("--only", "through", "--messages", "4000", "--json", str(results), "--data-parent", str(folders))
    assert done.returncode == 0, done.stderr
    assert "| through | rate" in done.stdout
    measures = {result["measure"]: result["ours"]["median"] for result in json.loads(results.read_text())["results"]}
    assert measures["rate"] > 0
    assert list(folders.iterdir()) == []


def test_a_run_over_http_can_be_kept_as_a_section_of_a_document(tmp_path: Path) -> None:
    section = tmp_path / "section.md"
    works = ("http-pub", "http-mpub", "http-mpub-binary")
    done = bench("--only", *works, "--messages", "1000", "--markdown", str(section))
    assert done.returncode == 0, done.stderr
    heading, *content = section.read_text().splitlines()
    assert heading.startswith("## `python -m bench --quick --only http-pub")
    assert {line.split()[1] for line in content if "| rate" in line} == set(works)


def works_in(document: Path) -> set[str]:
    return {result["work"] for result in json.loads(document.read_text())["results"]}


def test_works_of_traffic_are_done_whatever_their_size(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    works = ("requeue", "rdy-one", "topics-10", "large", "handler", "unanswered", "timeouts", "http-ping", "snappy")
    done = bench("--only", *works, "--messages", "100", "--many", "10", "--json", str(results))
    assert done.returncode == 0, done.stderr
    assert works_in(results) == set(works)


def test_works_of_single_events_are_done_whatever_their_size(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    works = ("stall-empty", "stall-delete", "stall-late-fins", "stall-deferred", "many-topics")
    done = bench("--only", *works, "--messages", "100", "--many", "10", "--json", str(results))
    assert done.returncode == 0, done.stderr
    assert works_in(results) == set(works)


def test_a_server_that_refuses_what_is_published_fails_the_work() -> None:
    done = bench("--only", "http-pub", "--messages", "100", "--binary-flag=--max-msg-size=100")
    assert done.returncode == 1
    assert 'FAILED http-pub: ours, round 1: nsqd answered 413 {"message":"MSG_TOO_BIG"}' in done.stderr
    assert "| http-pub" not in done.stdout
