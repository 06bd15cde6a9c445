"""The table of routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emberq.http.router import Route
from emberq.nsqd.api.routes import routes
from tests.broker.rig import Rig
from tests.nsqd.api.rig import RigNode


@pytest.fixture
def table() -> Iterator[dict[tuple[str, str], Route]]:
    """The routes of a node that takes messages of 100 bytes and bodies of 1000."""
    with Rig() as rig:
        found = routes(RigNode(rig, max_msg_size=100, max_body_size=1000))
        yield {(route.method, route.path): route for route in found}


def test_every_path_of_the_reference_is_there(table: dict[tuple[str, str], Route]) -> None:
    verbs = ("create", "delete", "empty", "pause", "unpause")
    assert {
        ("GET", "/ping"),
        ("GET", "/info"),
        ("GET", "/stats"),
        ("POST", "/pub"),
        ("POST", "/mpub"),
        *(("POST", f"/topic/{verb}") for verb in verbs),
        *(("POST", f"/channel/{verb}") for verb in verbs),
        ("GET", "/config/{option}"),
        ("PUT", "/config/{option}"),
        ("GET", "/debug/pprof/"),
        ("GET", "/debug/pprof/cmdline"),
        ("GET", "/debug/pprof/goroutine"),
        ("GET", "/debug/pprof/threadcreate"),
        ("GET", "/debug/pprof/block"),
        ("GET", "/debug/pprof/symbol"),
        ("POST", "/debug/pprof/symbol"),
        ("GET", "/debug/pprof/profile"),
        ("GET", "/debug/pprof/heap"),
        ("POST", "/debug/freememory"),
        ("PUT", "/debug/setblockrate"),
    } <= set(table)


def test_bodies_are_bounded_where_they_are_read(table: dict[tuple[str, str], Route]) -> None:
    bounds = {path: (route.max_body_bytes, route.too_big) for (_, path), route in table.items() if route.max_body_bytes}
    assert bounds == {
        "/pub": (100, "MSG_TOO_BIG"),
        "/mpub": (1000, "BODY_TOO_BIG"),
        "/channel/policy": (4096, "INVALID_POLICY"),
        "/config/{option}": (100, "INVALID_VALUE"),
        "/debug/setblockrate": (1024, "BODY_TOO_BIG"),
    }


def test_only_publishing_is_not_logged(table: dict[tuple[str, str], Route]) -> None:
    assert {path for (_, path), route in table.items() if route.quiet} == {"/pub", "/mpub"}
