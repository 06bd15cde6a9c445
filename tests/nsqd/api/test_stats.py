"""GET /stats: which of its two shapes."""

from __future__ import annotations

import json

import pytest

from emberq.nsqd.api.stats import StatsApi
from tests.broker.rig import Rig
from tests.nsqd.api.rig import RigNode, refusal_of, request


def test_json_is_for_those_who_ask_for_it() -> None:
    with Rig() as rig:
        answer = StatsApi(RigNode(rig)).stats(request("format=json&include_mem=0"))
    assert answer.content_type == "application/json; charset=utf-8"
    assert json.loads(answer.body)["topics"] == []


@pytest.mark.parametrize("query", ["", "format=text", "format=JSON", "format="])
def test_everyone_else_gets_text(query: str) -> None:
    with Rig() as rig:
        answer = StatsApi(RigNode(rig)).stats(request(query))
    assert answer.content_type == "text/plain; charset=utf-8"
    assert answer.body.startswith(b"nsqd v")


def test_a_malformed_query_is_refused() -> None:
    with Rig() as rig:
        assert refusal_of(StatsApi(RigNode(rig)).stats, request("format=json;")) == (400, "INVALID_REQUEST")
