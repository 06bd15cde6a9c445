"""Graphite, asked for the pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from emberq.admin.api.reading import origin_of
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread
from tests.support.cluster_rig import DEAD
from tests.support.recording_daemon import RecordingDaemon


class Graphite:
    """Answers /render, and notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.daemon = RecordingDaemon("", {}, self.calls)

    def says(self, document: Any) -> None:
        self.daemon.answers["/render"] = document


@pytest.fixture
def graphite() -> Iterator[Graphite]:
    graphite = Graphite()
    with graphite.daemon:
        yield graphite


@pytest.fixture
def admin(start_admin: StartAdmin, graphite: Graphite) -> AdminThread:
    return start_admin(graphite_url=f"http://{graphite.daemon.address}/", proxy_graphite=True)


def test_the_rate_of_a_series_is_its_first_value_per_second(admin: AdminThread, graphite: Graphite) -> None:
    graphite.says([{"target": "x", "datapoints": [[90.6, 1], [7, 2]]}])
    assert admin.get("/api/graphite?metric=rate&target=sum(a.b,%20%26c)").json() == {"rate": "1.51"}
    (call,) = graphite.calls
    assert parse_qs(urlsplit(call.removeprefix("GET ")).query) == {
        "format": ["json"],
        "from": ["-120sec"],
        "target": ["sum(a.b, &c)"],
        "until": ["-60sec"],
    }


def test_a_value_below_zero_is_not_available(admin: AdminThread, graphite: Graphite) -> None:
    graphite.says([{"datapoints": [[-1, 1]]}])
    assert admin.get("/api/graphite?metric=rate&target=x").json() == {"rate": "N/A"}


@pytest.mark.parametrize("document", [[], {}, [{"datapoints": []}], [{"datapoints": [[None, 1]]}], [[["x"]]], 5])
def test_no_value_is_an_internal_error(admin: AdminThread, graphite: Graphite, document: Any) -> None:
    graphite.says(document)
    assert admin.get("/api/graphite?metric=rate&target=x").error == (500, "INTERNAL_ERROR")


def test_what_is_asked_wrongly_is_refused(admin: AdminThread) -> None:
    assert admin.get("/api/graphite").error == (400, "INVALID_ARG_METRIC")
    assert admin.get("/api/graphite?metric=depth&target=x").error == (400, "INVALID_ARG_METRIC")
    assert admin.get("/api/graphite?metric=rate").error == (400, "INVALID_ARG_TARGET")
    assert admin.get("/api/graphite?metric=%").error == (400, "INVALID_REQUEST")


def test_what_graphite_renders_is_passed_on(admin: AdminThread, graphite: Graphite) -> None:
    graphite.says({"any": "thing"})
    answer = admin.get("/render?target=a%20b&format=json")
    assert (answer.json(), answer.headers["content-type"]) == ({"any": "thing"}, "application/json; charset=utf-8")
    assert admin.get("/render?target=x").headers["content-type"] == "image/png"
    assert admin.get("/render?target=x&format=html").headers["content-type"] == "text/plain; charset=utf-8"
    assert graphite.calls[0] == "GET /render?target=a%20b&format=json"


def test_nothing_is_passed_on_unless_asked_for(start_admin: StartAdmin) -> None:
    assert start_admin(graphite_url="http://graphite").get("/render?target=x").error == (404, "NOT_FOUND")


def test_a_graphite_that_cannot_be_reached_is_an_internal_error(start_admin: StartAdmin) -> None:
    admin = start_admin(graphite_url=f"http://{DEAD}", proxy_graphite=True)
    assert admin.get("/api/graphite?metric=rate&target=x").error == (500, "INTERNAL_ERROR")
    assert admin.get("/render?target=x").error == (500, "INTERNAL_ERROR")


def test_pictures_of_graphite_may_be_shown(start_admin: StartAdmin) -> None:
    admin = start_admin(graphite_url="https://me:secret@graphite:8080/path")
    policy = admin.get("/topics").headers["content-security-policy"]
    assert "img-src 'self' data: https://graphite:8080;" in policy
    assert origin_of("") == ""
