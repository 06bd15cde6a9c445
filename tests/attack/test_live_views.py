"""One client that takes all places of nsqadmin's live views."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from emberq.admin import audience as module
from tests.support.admin_rig import PATIENT, AdminThread, EventReader
from tests.support.cluster_rig import topic_entry
from tests.support.recording_daemon import RecordingDaemon
from tests.support.waiting import PATIENCE_S

INFO = {"broadcast_address": "nsqd.example", "hostname": "h", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
ATTACKER, ACCOMPLICE, USER = "127.0.0.66", "127.0.0.67", "127.0.0.1"


class Clients(ExitStack):
    """Clients of one nsqadmin, each with an address of its own."""

    def __init__(self, admin: AdminThread) -> None:
        super().__init__()
        self._admin = admin

    def look(self, view: str, *, address: str) -> EventReader:
        """Open a live view."""
        connection = socket.create_connection(self._admin.address, PATIENCE_S, source_address=(address, 0))
        self.enter_context(connection)
        connection.sendall(f"GET /api/live?{view} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return EventReader(connection)


@pytest.fixture
def clients() -> Iterator[Clients]:
    answers = {"/info": INFO, "/stats": {"topics": [topic_entry("t")]}}
    with (
        RecordingDaemon("", answers, []) as nsqd,
        AdminThread(nsqd_http_address=(nsqd.address,), **PATIENT) as admin,
        Clients(admin) as clients,
    ):
        yield clients


def status(events: EventReader) -> int:
    return int(events.head.split(" ")[1])


def test_a_client_with_all_views_does_not_keep_others_from_theirs(clients: Clients) -> None:
    views = [clients.look(f"view=channel&topic=t&channel=c{number}", address=ATTACKER) for number in range(100)]
    assert {status(each) for each in views} == {200}
    assert status(clients.look("view=channel&topic=t&channel=more", address=ATTACKER)) == 503
    for view in ("view=topics", "view=nodes", "view=topic&topic=t"):
        events = clients.look(view, address=USER)
        name, document = events.next()
        assert (status(events), name) == (200, view.removeprefix("view=").partition("&")[0]), document
    views[0].expect_end()  # the oldest had to make room


def test_a_client_with_all_streams_does_not_keep_others_from_theirs(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 6)
    streams = [clients.look("view=topics", address=address) for address in (ATTACKER, ACCOMPLICE) for _ in range(3)]
    users = [clients.look("view=topics", address=USER) for _ in range(2)]
    assert [status(each) for each in (*streams, *users)] == [200] * 8
    assert status(clients.look("view=topics", address=USER)) == 503  # all have as many now
    assert users[0].next()[1]["topics"][0]["topic_name"] == "t"


def test_two_clients_with_the_same_views_do_not_keep_others_from_theirs(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VIEWS", 4)
    for number in range(4):
        for address in (ATTACKER, ACCOMPLICE):
            assert status(clients.look(f"view=channel&topic=t&channel=c{number}", address=address)) == 200
    assert status(clients.look("view=topics", address=USER)) == 200
    assert status(clients.look("view=nodes", address=USER)) == 200
