"""The bench command, against a real nsqd."""

from __future__ import annotations

import json

import pytest

from emberq.cli.bench import main
from emberq.cli.terminal import DONE, FAILED
from emberq.embedded import EmbeddedThread
from tests.support.embedded import Broker, http_of
from tests.support.waiting import PATIENCE_S, wait_until

Captured = pytest.CaptureFixture[str]
COUNT = 12_000
"""More than may be under way at once."""


def bench(nsq: EmbeddedThread, *words: str) -> int:
    address = f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}"
    return main([address, f"--messages={COUNT}", f"--idle={PATIENCE_S}s", *words])


def topics(nsq: EmbeddedThread) -> list[str]:
    found: list[str] = http_of(nsq.nsqd_http_addresses[0]).get("/stats?format=json").json()["topics"]
    return found


def test_every_message_is_published_and_consumed_once(nsq: EmbeddedThread, capsys: Captured) -> None:
    assert bench(nsq, "--json", "--size=100") == DONE
    report = json.loads(capsys.readouterr().out)
    assert (report["messages"], report["size"], report["missing"], report["again"]) == (COUNT, 100, 0, 0)
    assert report["published_per_s"] > 0
    assert report["consumed_per_s"] > 0
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"] <= report["latency_ms"]["max"]
    wait_until(lambda: not topics(nsq))  # it leaves nothing behind


def test_a_topic_of_ones_own_is_kept(nsq: EmbeddedThread, capsys: Captured) -> None:
    assert bench(nsq, "--topic=kept", "--batch=500", "--publishers=2") == DONE
    assert f"{COUNT:,} messages of 200 bytes in " in (told := capsys.readouterr().out)
    assert "consumed " in told
    assert Broker(nsq).message_count("kept") == COUNT


def test_what_cannot_work_is_told(capsys: Captured) -> None:
    assert main(["--size=8"]) == FAILED
    assert "--size must be at least 16" in capsys.readouterr().err
    assert main(["--nsqd-tcp-address=127.0.0.1:1"]) == FAILED
    assert "Is nsqd running there?" in capsys.readouterr().err
