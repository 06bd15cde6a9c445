"""GET /journal tells the offsets that no message has from those of messages that are lost."""

from __future__ import annotations

from tests.conftest import StartNsqd
from tests.support.http_client import HttpClient


def test_offsets_that_were_passed_over_after_a_crash_are_listed(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(journal=True)
    nsqd.create_channel("t", "c")
    nsqd.connect().pub("t", b"first")
    nsqd.stop()
    folder = nsqd.data_path / "t.journal"
    (segment,) = folder.glob("*.log")
    with segment.open("ab") as file:
        file.write(b"EqB1" * 100)  # what may have been messages that a reader has seen
    nsqd.start()
    nsqd.connect().pub("t", b"second")
    http = HttpClient(nsqd.http_address)
    told = http.get("/journal?topic=t").json()
    (jump,) = told["jumps"]
    assert jump == {"first_offset": 1, "next_offset": told["next_offset"] - 1}
    assert told["gaps"] == []
    nsqd.restart()
    again = HttpClient(nsqd.http_address).get("/journal?topic=t").json()
    assert again["jumps"] == [jump]


def test_a_journal_without_a_crash_has_no_jumps(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(journal=True, journal_segment_bytes=1 << 20)
    for _ in range(3):
        nsqd.connect().pub("t", bytes(700_000))
    told = HttpClient(nsqd.http_address).get("/journal?topic=t").json()
    assert len(told["segments"]) > 1
    assert told["jumps"] == []
