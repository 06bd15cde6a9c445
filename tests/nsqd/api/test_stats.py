"""GET /stats: which of its two shapes, and how much of it in one turn of the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.broker.stats import ClientStats
from emberq.http.body import AT_ONCE_STEPS, PORTION_STEPS
from emberq.http.message import Response
from emberq.nsqd.api.stats import MEMORY_AGE_NS, StatsApi
from tests.broker.rig import Consumer, Rig
from tests.nsqd.api.rig import RigNode, refusal_of, request

MANY = 10 * PORTION_STEPS


def at_once(answer: Response | Awaitable[Response]) -> Response:
    assert isinstance(answer, Response)
    return answer


def later(answer: Response | Awaitable[Response]) -> asyncio.Future[Response]:
    """The answer of a node that is too large to be described at once."""
    assert not isinstance(answer, Response)
    return asyncio.ensure_future(answer)


async def turns_until(answer: asyncio.Future[Response]) -> int:
    """How many turns others have meanwhile."""
    count = 0
    while not answer.done():
        await asyncio.sleep(0)
        count += 1
    return count


def members(answer: Response) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(answer.body)
    return parsed


def test_json_is_for_those_who_ask_for_it() -> None:
    with Rig() as rig:
        answer = at_once(StatsApi(RigNode(rig)).stats(request("format=json&include_mem=0")))
    assert answer.content_type == "application/json; charset=utf-8"
    assert members(answer)["topics"] == []


@pytest.mark.parametrize("query", ["", "format=text", "format=JSON", "format="])
def test_everyone_else_gets_text(query: str) -> None:
    with Rig() as rig:
        answer = at_once(StatsApi(RigNode(rig)).stats(request(query)))
    assert answer.content_type == "text/plain; charset=utf-8"
    assert answer.body.startswith(b"nsqd v")


def test_a_malformed_query_is_refused() -> None:
    with Rig() as rig:
        assert refusal_of(StatsApi(RigNode(rig)).stats, request("format=json;")) == (400, "INVALID_REQUEST")


def test_a_small_node_is_described_at_once(rig: Rig) -> None:
    for topic in ("a", "b", "c"):
        rig.channel(topic=topic)
    answer = at_once(StatsApi(RigNode(rig)).stats(request("format=json")))
    assert [topic["topic_name"] for topic in members(answer)["topics"]] == ["a", "b", "c"]


@pytest.mark.parametrize("shape", ["json", "text"])
async def test_while_many_topics_are_described_others_have_their_turn(rig: Rig, shape: str) -> None:
    names = [f"t{number:04}" for number in range(MANY)]
    for name in reversed(names):
        rig.channel(topic=name)
    answer = later(StatsApi(RigNode(rig)).stats(request(f"format={shape}")))
    assert await turns_until(answer) >= MANY // PORTION_STEPS
    body = answer.result().body
    assert [name for name in names if body.count(name.encode()) != 1] == []
    if shape == "json":
        assert [topic["topic_name"] for topic in members(answer.result())["topics"]] == names


@pytest.mark.parametrize("shape", ["json", "text"])
async def test_while_many_consumers_are_described_others_have_their_turn(rig: Rig, shape: str) -> None:
    for _ in range(MANY):
        rig.consumer()
    answer = later(StatsApi(RigNode(rig)).stats(request(f"format={shape}")))
    assert await turns_until(answer) >= MANY // PORTION_STEPS
    if shape == "json":
        (channel,) = members(answer.result())["topics"][0]["channels"]
        assert (len(channel["clients"]), channel["client_count"]) == (MANY, MANY)
    else:
        assert answer.result().body.count(b"[V2 ") == MANY


@pytest.mark.parametrize("query", ["format=json", "", "format=json&topic=t", "topic=t"])
async def test_consumers_are_read_when_their_turn_comes(rig: Rig, query: str) -> None:
    read: list[Consumer] = []

    class Read(Consumer):
        def stats(self) -> ClientStats:
            read.append(self)
            return super().stats()

    for _ in range(MANY):
        Read(rig.channel())
    answer = later(StatsApi(RigNode(rig)).stats(request(query)))
    assert len(read) <= AT_ONCE_STEPS
    while not answer.done():
        before = len(read)
        await asyncio.sleep(0)
        assert len(read) - before <= PORTION_STEPS
    assert len(read) == MANY


def test_consumers_that_are_not_asked_for_are_not_described(rig: Rig) -> None:
    class Silent(Consumer):
        def stats(self) -> Any:
            raise AssertionError("not asked for")

    for _ in range(AT_ONCE_STEPS):
        Silent(rig.channel())
    answer = at_once(StatsApi(RigNode(rig)).stats(request("format=json&include_clients=0")))
    (channel,) = members(answer)["topics"][0]["channels"]
    assert (channel["clients"], channel["client_count"]) == (None, AT_ONCE_STEPS)


async def test_what_is_deleted_meanwhile_is_left_out(rig: Rig) -> None:
    for number in range(MANY):
        rig.channel(topic=f"t{number:04}")
        rig.channel(f"c{number:04}", topic="a")
    consumers = [rig.consumer() for _ in range(MANY)]
    answer = later(StatsApi(RigNode(rig)).stats(request("format=json")))
    await asyncio.sleep(0)
    last_name = f"{MANY - 1:04}"
    rig.broker.delete_topic(f"t{last_name}")
    rig.topic("a").delete_channel(f"c{last_name}")
    consumers[-1].leave()
    await answer
    topics = {topic["topic_name"]: topic["channels"] for topic in members(answer.result())["topics"]}
    assert len(topics) == MANY + 1  # of the many one less; `a` and `t`
    assert len(topics["a"]) == MANY - 1
    assert len(topics["t"][0]["clients"]) == MANY - 1


def test_memory_is_not_read_for_every_request(rig: Rig) -> None:
    api = StatsApi(RigNode(rig))

    def collector_runs() -> int:
        gc.collect()
        count: int = members(at_once(api.stats(request("format=json"))))["memory"]["gc_total_runs"]
        return count

    first = collector_runs()
    assert collector_runs() == first
    rig.clock.advance(ms=MEMORY_AGE_NS / NS_PER_MS)
    assert collector_runs() > first
