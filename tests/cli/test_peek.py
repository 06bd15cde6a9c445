"""The emberq peek command as a user meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emberq.cli.peek import main
from emberq.embedded import EmbeddedThread
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.support.cluster_rig import DEAD
from tests.support.embedded import create, post, publish
from tests.support.recording_daemon import RecordingDaemon


@pytest.fixture
def address(nsq: EmbeddedThread) -> str:
    """An nsqd with three messages in channel `c` of topic `t`."""
    create(nsq, "t", "c")
    publish(nsq, "t", b'{"n":1}', b"[bold]two\x1b[2J", b"\xff\x00")
    return nsq.nsqd_http_addresses[0]


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_pipe_gets_lines_of_json(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["t", "c", f"--nsqd-http-address={address}"]) == 0
    first, second, third = lines(capsys)
    assert (first["topic"], first["channel"], first["nsqd"], first["attempts"]) == ("t", "c", address, 0)
    assert len(first["id"]) == 16
    assert first["timestamp_ns"] < second["timestamp_ns"]
    assert (first["body"], second["body"]) == ('{"n":1}', "[bold]two\x1b[2J")
    assert third["body_base64"] == "/wA="


def test_as_many_as_asked_for_are_shown_and_found_through_nsqlookupd(
    address: str, nsq: EmbeddedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["t", "c", "-n", "1", f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}", "--json"]) == 0
    assert [line["body"] for line in lines(capsys)] == ['{"n":1}']


def test_a_terminal_gets_a_table_in_which_bodies_do_no_harm(address: str) -> None:
    command = ("peek", "t", "c", f"--nsqd-http-address={address}")
    with PseudoTerminal(*command, columns=100) as terminal:
        assert terminal.await_end() == 0
    drawn = terminal.drawn.decode()
    assert "PUBLISHED" in drawn
    assert '{"n":1}' in drawn
    assert "[bold]two\\x1b[2J" in drawn
    assert "\\xff\\x00" in drawn


def test_an_empty_channel_shows_nothing(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    post(address, "/channel/empty?topic=t&channel=c")
    assert main(["t", "c", f"--nsqd-http-address={address}"]) == 0
    assert capsys.readouterr().out == ""


def test_a_channel_that_is_not_there_is_told(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["t", "none", f"--nsqd-http-address={address}"]) == 1
    assert capsys.readouterr().err == "emberq peek: no nsqd has a channel none of a topic t\n"


def test_a_topic_without_an_nsqd_is_told(nsq: EmbeddedThread, capsys: pytest.CaptureFixture[str]) -> None:
    (lookupd,) = nsq.lookupd_http_addresses
    post(lookupd, "/topic/create?topic=idle")
    assert main(["idle", "c", f"--lookupd-http-address={lookupd}"]) == 1
    assert capsys.readouterr().err == "emberq peek: no nsqd has a topic idle at present\n"


def test_an_nsqd_that_has_no_peek_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with RecordingDaemon("nsqd", {}, []) as others:
        assert main(["t", "c", f"--nsqd-http-address={others.address}"]) == 1
    told = capsys.readouterr().err
    assert told == f"emberq peek: {others.address} has no peek: only emberq's nsqd can show waiting messages\n"


def test_an_nsqd_that_is_down_is_told_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["t", "c", f"--nsqd-http-address={DEAD}"]) == 1
    assert "`emberq up` starts one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["t"], ["not a topic", "c"], ["t", "c", "-n", "0"], ["t", "c", "-n", "101"], ["t", "c", "--nope"]]
)
def test_mistakes_are_told_with_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("emberq peek: ")
