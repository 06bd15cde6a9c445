"""Clients of other machines that have a daemon record itself, which costs it most of its speed."""

from __future__ import annotations

import threading
from itertools import product

import pytest

from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.lookupd_harness import LookupdHarness

PATHS = ("", "cmdline", "goroutine", "threadcreate", "block", "profile?seconds=0.01", "heap?seconds=0.01")
FROM_ELSEWHERE = (
    {"X-Forwarded-For": "203.0.113.7"},
    {"Forwarded": "for=203.0.113.7"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Host": "0.0.0.0:4151", "Accept-Language": "en"},
)
"""Through a proxy on the daemon's machine, or by a browser there, which does not say whose page asks for 0.0.0.0."""


@pytest.mark.parametrize(("path", "headers"), list(product(PATHS, FROM_ELSEWHERE)))
def test_other_machines_cannot_look_into_a_daemon(
    http: HttpClient, lookupd: LookupdHarness, path: str, headers: dict[str, str]
) -> None:
    for daemon in (http, lookupd.http):
        answer = daemon.request("GET", f"/debug/pprof/{path}", headers=headers)
        assert (answer.status, answer.json()["message"]) == (403, "FORBIDDEN")
        assert daemon.get(f"/debug/pprof/{path}").status == 200


def test_other_machines_cannot_have_nsqd_collect_garbage(http: HttpClient) -> None:
    answer = http.request("POST", "/debug/freememory", headers=FROM_ELSEWHERE[0])
    assert (answer.status, answer.json()["message"]) == (403, "FORBIDDEN")
    assert http.post("/debug/freememory").status == 200


def test_a_recording_is_short_and_alone_in_its_process(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    """nsqd and nsqlookupd share the process here: both would be slowed down."""
    http = HttpClient(nsqd.http_address)
    assert http.get("/debug/pprof/heap?seconds=60").status == 400
    statuses: list[int] = []

    def record() -> None:
        while (status := http.get("/debug/pprof/profile?seconds=0.5").status) == 409:
            pass  # the other was first
        statuses.append(status)

    first = threading.Thread(target=record)
    first.start()
    while not statuses and first.is_alive():
        if lookupd.get("/debug/pprof/heap?seconds=0.01").status == 409:
            break
    else:
        pytest.fail("both recorded at once")
    first.join()
    assert statuses == [200]
