"""The emberq top command where nobody watches: `--once`, `--json`, pipes. The live screen: tests/tools/top."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from emberq.cli.top import main
from emberq.embedded import EmbeddedThread
from tests.support.cluster_rig import DEAD
from tests.support.embedded import create, publish

pytestmark = pytest.mark.nsq(nsqd_count=2)


@pytest.fixture
def flags(nsq: EmbeddedThread) -> list[str]:
    """How to reach a cluster with topics `clicks` and `orders`."""
    create(nsq, "clicks", "archive", node=0)
    create(nsq, "orders", "mail", node=1)
    publish(nsq, "orders", b"x", node=1)
    return [f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}", "--interval=100ms"]


def test_once_prints_one_table(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", *flags]) == 0
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("emberq top  2 nsqds · 2 topics · 2 channels · in 0/s · out 0/s")
    assert head.split()[:3] == ["TOPIC", "CHANNEL", "▼DEPTH"]
    assert [row.split()[:3] for row in rows] == [["orders", "mail", "1"], ["clicks", "archive", "0"]]


def test_once_with_json_prints_one_document(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", "--json", *flags, "--sort=name", "--reverse", "--filter=o*"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert [(row["topic"], row["channel"], row["depth"]) for row in document["rows"]] == [("orders", "mail", 1)]
    assert (document["topic_count"], document["warnings"], document["came_per_s"]) == (2, [], 0.0)


def test_json_is_a_document_per_interval(flags: list[str]) -> None:
    command = [sys.executable, "-m", "emberq.cli.main", "top", "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        first, second = (json.loads(running.stdout.readline()) for _ in range(2))
        running.terminate()
        _, errors = running.communicate(timeout=30)
    assert (first["came_per_s"], second["came_per_s"]) == (None, 0.0)
    assert (running.returncode, errors) == (0, "")


def test_a_cluster_that_does_not_answer_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", f"--nsqd-http-address={DEAD}"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("emberq top: failed to query any nsqd: Get ")
    assert "`emberq up` starts one" in told


def test_both_kinds_of_address_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--once", "--nsqd-http-address=a:1", "--lookupd-http-address=b:1"]) == 1
    assert "not both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--interval=1ms", "must be at least 0.1s"),
        ("--interval=soon", "is not a duration"),
        ("--sort=colour", "invalid choice"),
    ],
)
def test_mistakes_are_told_with_status_2(flag: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 2
    assert complaint in capsys.readouterr().err
