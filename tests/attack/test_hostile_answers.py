"""Daemons that answer nsqadmin with what no daemon would say: it stays quick, and shows what the others say."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from tests.support.admin_rig import PATIENT, AdminThread
from tests.support.cluster_rig import channel_entry, topic_entry
from tests.support.http_client import Answer
from tests.support.recording_daemon import RecordingDaemon
from tests.support.threaded_http import NOT_FOUND, Received, Reply, ThreadedHttp

# Processor time of this process, in which the daemons and nsqadmin work.
QUICK_S = 10.0
"""For an answer that has to ask very many questions. Without a bound it takes minutes."""
BYSTANDER_S = 1.0
"""For a page that asks no daemon."""


def info(name: str) -> dict[str, Any]:
    return {"broadcast_address": name, "hostname": name, "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}


class Prepared(ThreadedHttp):
    """Answers each path with bytes that were made before."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        super().__init__(self._answer)
        self._answers = answers

    def _answer(self, request: Received) -> Reply:
        body = self._answers.get(request.target.partition("?")[0])
        return NOT_FOUND if body is None else Reply(body)


def timed(ask: Callable[[], Answer]) -> tuple[Answer, float]:
    began_s = time.process_time()
    return ask(), time.process_time() - began_s


def slowest_ping_s(admin: AdminThread, work: Callable[[], object]) -> float:
    """How much is worked at most while another client waits."""
    working = threading.Thread(target=work)
    working.start()
    slowest_s = 0.0
    while working.is_alive():
        _, took_s = timed(lambda: admin.get("/ping"))
        slowest_s = max(slowest_s, took_s)
        time.sleep(0.01)
    working.join()
    return slowest_s


# nsqlookupd


def test_very_many_topics_without_an_nsqd_are_not_all_looked_up() -> None:
    names = [f"made.up.{number}" for number in range(300_000)]
    answers = {
        "/topics": json.dumps({"topics": names}).encode(),
        "/nodes": b'{"producers":[]}',
        "/lookup": b'{"channels":[],"producers":[]}',
    }
    with Prepared(answers) as lookupd, AdminThread(lookupd_http_address=(lookupd.address,), **PATIENT) as admin:
        answer, took_s = timed(lambda: admin.get("/api/topics?inactive=true"))
        assert took_s < QUICK_S
        assert len(answer.json()["topics"]) == 1000
        assert "100000 topics may be inactive, of which 1000 were looked up" in answer.json()["message"]
        answer, took_s = timed(lambda: admin.get("/api/topics"))
        assert (took_s < QUICK_S, len(answer.json()["topics"])) == (True, 100_000)
        assert "more than 100000 topics" in answer.json()["message"]
        answer, took_s = timed(lambda: admin.get("/api/view?view=topics"))
        assert (took_s < QUICK_S, len(answer.json()["topics"])) == (True, 20_000)
        assert slowest_ping_s(admin, lambda: admin.get("/api/topics")) < BYSTANDER_S


def test_very_many_nsqds_are_not_all_asked() -> None:
    dead = [
        {**info(f"h{number}"), "broadcast_address": "127.0.0.1", "tcp_port": number, "http_port": 1}
        for number in range(20_000)
    ]
    answers = {"/topics": b'{"topics":[]}', "/nodes": json.dumps({"producers": dead}).encode()}
    with Prepared(answers) as lookupd, AdminThread(lookupd_http_address=(lookupd.address,), **PATIENT) as admin:
        answer, took_s = timed(lambda: admin.get("/api/nodes"))
        assert (took_s < QUICK_S, len(answer.json()["nodes"])) == (True, 1000)
        assert "more than 1000 nsqds" in answer.json()["message"]
        answer, took_s = timed(lambda: admin.get("/api/counter"))
        assert (took_s < 2 * QUICK_S, answer.status, len(answer.body) < 10_000) == (True, 502, True)


def test_an_nsqd_with_very_many_topics_does_not_hold_up_others() -> None:
    topics = [f"made.up.{number}" for number in range(100_000)]
    node = {**info("h"), "topics": topics, "tombstones": [False] * len(topics), "broadcast_address": "127.0.0.1"}
    answers = {"/topics": json.dumps({"topics": topics}).encode(), "/nodes": json.dumps({"producers": [node]}).encode()}
    with Prepared(answers) as lookupd, AdminThread(lookupd_http_address=(lookupd.address,), **PATIENT) as admin:
        found: list[Answer] = []
        assert slowest_ping_s(admin, lambda: found.append(admin.get("/api/nodes"))) < BYSTANDER_S
        assert len(found[0].json()["nodes"][0]["topics"]) == 100_000


# nsqd

HUGE = 2**63 - 1
HOSTILE = {
    "deep": b'{"topics":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "many empty lists": b'{"topics":[' + b"[]," * 2_000_000 + b"[]]}",
    "no JSON": b"\xff\xfe",
    "a long number": b'{"topics":[],"x":' + b"9" * 1_000_000 + b"}",
    "a list": b"[]",
    "topics of another type": b'{"topics":{"a":1}}',
    "names of another type": json.dumps({"topics": [topic_entry("t") | {"topic_name": 7}]}).encode(),
    "figures too large": json.dumps({"topics": [topic_entry("t", depth=HUGE, message_count=-HUGE)]}).encode(),
    "figures that overflow together": json.dumps(
        {"topics": [topic_entry("t", channel_entry("c", depth=HUGE, in_flight_count=HUGE, deferred_count=HUGE))]}
    ).encode(),
    "figures without end": b'{"topics":[{"topic_name":"t","channels":[],"depth":1e999}]}',
    "clients of another type": json.dumps({"topics": [topic_entry("t", channel_entry("c", clients=[1]))]}).encode(),
    "percentiles of another type": json.dumps(
        {"topics": [topic_entry("t", e2e_processing_latency={"count": "x", "percentiles": [1]})]}
    ).encode(),
    "very many topics": json.dumps({"topics": [{"topic_name": f"t{number}"} for number in range(150_000)]}).encode(),
}


@pytest.mark.parametrize("stats", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_nsqd_spoils_nothing_but_its_own_figures(stats: bytes) -> None:
    honest_stats = {"topics": [topic_entry("orders", channel_entry("billing"), message_count=5)]}
    hostile_answers = {"/info": json.dumps(info("evil")).encode(), "/stats": stats}
    clock = ManualClock()
    with (
        RecordingDaemon("", {"/info": info("honest"), "/stats": honest_stats}, []) as honest,
        Prepared(hostile_answers) as hostile,
        AdminThread(nsqd_http_address=(honest.address, hostile.address), clock=clock, **PATIENT) as admin,
    ):
        for _ in range(2):  # the second is compared with the first
            clock.advance(seconds=60)
            answer, took_s = timed(lambda: admin.get("/api/view?view=topics"))
            assert (answer.status, took_s < QUICK_S) == (200, True)
            assert "orders" in [topic["topic_name"] for topic in answer.json()["topics"]]
        for path in ("/api/topics", "/api/nodes", "/api/counter", "/api/topics/orders", "/api/topics/orders/billing"):
            answer, took_s = timed(lambda path=path: admin.get(path))  # type: ignore[misc]
            assert (path, answer.status, took_s < QUICK_S) == (path, 200, True)
        assert admin.get("/api/nodes/evil:4151").status in (200, 502)


def test_an_answer_without_an_end_is_given_up() -> None:
    with (
        Prepared({"/topics": b'{"topics":["' + b"x" * 40_000_000 + b'"]}'}) as lookupd,
        AdminThread(lookupd_http_address=(lookupd.address,)) as admin,
    ):
        assert admin.get("/api/topics").status == 502
