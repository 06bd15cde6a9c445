"""Clients of other machines that have a daemon record itself, which costs it most of its speed."""

from __future__ import annotations

import threading
from itertools import product

import pytest

from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.lookupd_harness import LookupdHarness
from tests.support.waiting import wait_until

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
    statuses: set[int] = set()
    is_refused = threading.Event()

    def record() -> None:
        while not is_refused.is_set() or 200 not in statuses:
            statuses.add(http.get("/debug/pprof/profile?seconds=0.5").status)

    recording = threading.Thread(target=record)
    recording.start()
    try:
        wait_until(lambda: lookupd.get("/debug/pprof/heap?seconds=0.01").status == 409)
    finally:
        is_refused.set()
        recording.join()
    assert statuses <= {200, 409}  # refused, if the other was first
