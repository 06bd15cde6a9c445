"""The emberq journal seek command against real nsqds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from emberq.cli.journal_seek import main
from emberq.embedded import EmbeddedThread
from tests.support.cluster_rig import DEAD
from tests.support.embedded import create, post, publish
from tests.support.looking import is_registered, topic_stats
from tests.support.recording_daemon import RecordingDaemon
from tests.support.waiting import wait_until


@pytest.fixture
def journaling() -> Iterator[EmbeddedThread]:
    """Two nsqds and an nsqlookupd; both nsqds have three messages in channel `c` of topic `t`."""
    with EmbeddedThread(nsqd_count=2, journal_topic=("^t$",)) as nsq:
        for address in nsq.nsqd_http_addresses:
            post(address, "/topic/create?topic=t")
            post(address, "/channel/create?topic=t&channel=c")
            post(address, "/mpub?topic=t", b"a\nb\nc")
        yield nsq


def depth(nsq: EmbeddedThread) -> int:
    (topic,) = topic_stats(nsq, "t")
    return int(topic["channels"][0]["depth"])


def test_a_channel_is_moved_and_the_place_is_told(
    journaling: EmbeddedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    address = journaling.nsqd_http_addresses[0]
    flag = f"--nsqd-http-address={address}"
    for to, offset in (("latest", 3), ("earliest", 0), ("1", 1), ("2001-01-01T00:00:00+02:00", 0)):
        assert main(["t", "c", to, flag]) == 0
        assert capsys.readouterr().out == f"{address}: t/c goes on at offset {offset}\n"
        assert depth(journaling) == 3 - offset


def test_a_channel_is_moved_on_every_nsqd_that_has_the_topic(
    journaling: EmbeddedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    (lookupd,) = journaling.lookupd_http_addresses
    wait_until(lambda: is_registered(journaling, "t"))
    assert main(["t", "c", "latest", f"--lookupd-http-address={lookupd}", "--json"]) == 0
    moved = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(each["nsqd"], each["offset"]) for each in moved} == {(a, 3) for a in journaling.nsqd_http_addresses}
    assert main(["t", "c", "1", f"--lookupd-http-address={lookupd}"]) == 1
    assert capsys.readouterr().err.startswith("emberq journal seek: 2 nsqds have the topic, and each counts its own")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none", "c", "latest"], "has no such topic"),
        (["t", "none", "latest"], "has no such channel"),
        (["t", "c", "99"], "does not have this message yet; `latest` is behind the newest one it has"),
        (["classic", "c", "latest"], "does not journal this topic, so there is nothing to go back to"),
    ],
)
def test_what_nsqd_refuses_is_explained(
    journaling: EmbeddedThread, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    create(journaling, "classic", "c")
    publish(journaling, "classic", b"x")
    address = journaling.nsqd_http_addresses[0]
    assert main([*words, f"--nsqd-http-address={address}"]) == 1
    assert capsys.readouterr().err == f"emberq journal seek: {address} {told}\n"


def test_an_nsqd_that_knows_no_seek_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with RecordingDaemon("nsqd", {}, []) as others:
        assert main(["t", "c", "latest", f"--nsqd-http-address={others.address}"]) == 1
        assert "knows no seek" in capsys.readouterr().err


def test_an_nsqd_that_is_down_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["t", "c", "latest", f"--nsqd-http-address={DEAD}"]) == 1
    assert DEAD in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["t", "c"], ["t", "c", "yesterday"], ["not a topic", "c", "latest"]])
def test_mistakes_are_told_with_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("emberq journal seek: ")
