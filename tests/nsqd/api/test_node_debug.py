"""/debug: answers of the handlers that only nsqd has."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

from emberq.http.message import Request
from emberq.nsqd.api import node
from emberq.nsqd.api.node import free_memory, set_block_rate
from tests.nsqd.api.rig import request


class Cycle:
    """Something that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


def put(query: str = "", body: bytes = b"") -> Request:
    return Request("PUT", f"/debug/setblockrate?{query}", body=body)


async def test_freeing_memory_collects_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "MAX_SWEPT_BLOCKS", sys.maxsize)  # those of other tests count too
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        assert garbage() is not None
        answer = await free_memory(request())
    finally:
        gc.enable()
    assert (answer.status, garbage()) == (200, None)


async def test_a_large_heap_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "MAX_SWEPT_BLOCKS", 0)
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        answer = await free_memory(request())
        assert (answer.status, garbage() is None) == (200, False)
    finally:
        gc.enable()


@pytest.mark.parametrize(("query", "body"), [("rate=1", b""), ("rate=-1", b""), ("", b"rate=7"), ("rate=x", b"rate=7")])
def test_a_block_rate_is_accepted_from_query_or_form(query: str, body: bytes) -> None:
    assert set_block_rate(put(query, body)).status == 200


@pytest.mark.parametrize(("query", "rate"), [("", ""), ("rate=x", "x")])
def test_a_block_rate_must_be_a_number(query: str, rate: str) -> None:
    answer = set_block_rate(put(query))
    assert answer.status == 400
    assert answer.body.decode() == f'invalid block rate : parsing "{rate}": invalid syntax'
