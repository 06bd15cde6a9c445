"""The requeue-dead command, against a real nsqd."""

from __future__ import annotations

import json
import sys

import pytest

from emberq.cli.requeue_dead import DEFAULT_CHANNEL, main
from emberq.cli.terminal import DONE, FAILED, MISUSED
from emberq.embedded import EmbeddedThread
from emberq.sync import Consumer, Producer
from emberq.wire.dead_letter import DeadLetter, encode_dead_letter
from tests.cli.looking import is_registered
from tests.cli.screen import Screen
from tests.waiting import wait_until

Captured = pytest.CaptureFixture[str]
QUICK = "--idle=400ms"
"""Longer than nsqd keeps a message back to send it with others."""


def requeue_dead(nsq: EmbeddedThread, *words: str) -> int:
    addresses = (f"--nsqd-tcp-address={address}" for address in nsq.nsqd_tcp_addresses)
    return main(["dead", "--to=alive", QUICK, *words, *addresses])


def publish(nsq: EmbeddedThread, *bodies: bytes) -> None:
    with Producer(nsq.nsqd_tcp_addresses) as producer:
        producer.publish_many("dead", bodies)


def bodies_in(nsq: EmbeddedThread, topic: str, channel: str = DEFAULT_CHANNEL) -> list[bytes]:
    with Consumer(topic, channel, nsqd_addresses=nsq.nsqd_tcp_addresses) as consumer:
        bodies = []
        for message in consumer.messages(idle_timeout_s=0.5):
            bodies.append(message.body)
            message.finish()
        return sorted(bodies)


def test_dead_letters_get_another_chance(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1", b"2", b"3")
    assert requeue_dead(nsq) == DONE
    assert capsys.readouterr().out == "moved 3 messages from dead to alive\n"
    assert bodies_in(nsq, "alive") == [b"1", b"2", b"3"]
    assert bodies_in(nsq, "dead") == []


def test_a_few_can_be_tried_first(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1", b"2", b"3")
    assert requeue_dead(nsq, "--count=2", "--rate=1000", "--json") == DONE
    assert json.loads(capsys.readouterr().out) == {
        "from": "dead",
        "to": "alive",
        "moved": 2,
        "left": 0,
        "unaddressed": 0,
    }
    assert len(bodies_in(nsq, "alive")) == 2
    assert len(bodies_in(nsq, "dead")) == 1


def test_a_dry_run_shows_them_and_leaves_them(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1", b"2")
    assert requeue_dead(nsq, "--dry-run") == DONE
    captured = capsys.readouterr()
    assert captured.out == "1\n2\n"
    assert captured.err == "emberq requeue-dead: would move 2 messages to alive; nothing was changed\n"
    assert bodies_in(nsq, "alive") == []
    assert bodies_in(nsq, "dead") == [b"1", b"2"]


def test_an_empty_channel_is_told_with_a_way_out(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1")
    assert bodies_in(nsq, "dead", "archive") == [b"1"]
    assert requeue_dead(nsq) == DONE
    captured = capsys.readouterr()
    assert captured.out == "moved 0 messages from dead to alive\n"
    assert "--channel names another" in captured.err


def test_what_nsqd_gave_up_goes_back_by_itself(nsq: EmbeddedThread, capsys: Captured) -> None:
    note = DeadLetter(topic="alive", channel="c", id="1", attempts=3, timestamp_ns=1, reason="", body=b"1")
    letter = encode_dead_letter(note, max_bytes=1000)
    assert letter is not None
    publish(nsq, letter, b"bare")
    addresses = (f"--nsqd-tcp-address={address}" for address in nsq.nsqd_tcp_addresses)
    assert main(["dead", QUICK, *addresses]) == DONE
    captured = capsys.readouterr()
    assert captured.out == "moved 1 message from dead to where they came from\n"
    assert "1 message stayed" in captured.err
    assert "--to" in captured.err
    assert bodies_in(nsq, "alive") == [b"1"]
    assert bodies_in(nsq, "dead") == [b"bare"]


def test_a_terminal_shows_progress(nsq: EmbeddedThread, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(nsq, b"1", b"2")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    assert requeue_dead(nsq, "--count=2") == DONE
    assert "dead → alive" in screen.text
    assert "2/2" in screen.text


def test_nsqds_are_found_by_nsqlookupd(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1")
    wait_until(lambda: is_registered(nsq, "dead"))
    assert main(["dead", "--to=alive", QUICK, f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}"]) == DONE
    assert capsys.readouterr().out == "moved 1 message from dead to alive\n"


def test_a_topic_cannot_be_moved_to_itself(capsys: Captured) -> None:
    assert main(["dead", "--to=dead"]) == MISUSED
    assert "from a topic to itself" in capsys.readouterr().err


def test_nobody_there_is_told(capsys: Captured) -> None:
    assert main(["dead", "--to=alive", "--nsqd-tcp-address=127.0.0.1:1"]) == FAILED
    assert "no nsqd with the topic dead can be reached" in capsys.readouterr().err
