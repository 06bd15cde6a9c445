"""The requeue-dead command, against a real nsqd."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import pytest

from emberq.cli.requeue_dead import DEFAULT_CHANNEL, main
from emberq.cli.terminal import DONE, FAILED, MISUSED
from emberq.embedded import EmbeddedThread
from emberq.sync import Producer
from emberq.wire.dead_letter import DeadLetter, encode_dead_letter
from tests.cli.screen import Screen
from tests.support.embedded import Broker, address_of, http_of
from tests.support.looking import is_registered
from tests.support.raw_client import Client
from tests.support.waiting import PATIENCE_S, wait_until

Captured = pytest.CaptureFixture[str]
UNTIL_EMPTY = "--idle=2s"
"""Much longer than nsqd keeps a message back to send it with others, which is a quarter of a second."""
UNTIL_COUNTED = f"--idle={PATIENCE_S}s"
"""For a run that ends when it has moved so many."""


def requeue_dead(nsq: EmbeddedThread, *words: str, idle: str = UNTIL_EMPTY) -> int:
    addresses = (f"--nsqd-tcp-address={address}" for address in nsq.nsqd_tcp_addresses)
    return main(["dead", "--to=alive", idle, *words, *addresses])


def publish(nsq: EmbeddedThread, *bodies: bytes) -> None:
    with Producer(nsq.nsqd_tcp_addresses) as producer:
        producer.publish_many("dead", bodies)


def alive(nsq: EmbeddedThread) -> list[bytes]:
    """What was moved."""
    return sorted(Broker(nsq).take_all("alive"))


def left(nsq: EmbeddedThread) -> list[bytes]:
    """What was not."""
    broker = Broker(nsq)
    count = broker.counts("dead", DEFAULT_CHANNEL).unfinished
    return sorted(broker.take("dead", count, channel=DEFAULT_CHANNEL))


def test_dead_letters_get_another_chance(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1", b"2", b"3")
    assert requeue_dead(nsq) == DONE
    assert capsys.readouterr().out == "moved 3 messages from dead to alive\n"
    assert alive(nsq) == [b"1", b"2", b"3"]
    assert left(nsq) == []


def test_a_few_can_be_tried_first(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1", b"2", b"3")
    assert requeue_dead(nsq, "--count=2", "--rate=1000", "--json", idle=UNTIL_COUNTED) == DONE
    assert json.loads(capsys.readouterr().out) == {
        "from": "dead",
        "to": "alive",
        "moved": 2,
        "left": 0,
        "unaddressed": 0,
    }
    assert len(alive(nsq)) == 2
    assert len(left(nsq)) == 1


def dry_run(nsq: EmbeddedThread, *words: str) -> int:
    return main(["dead", "--dry-run", *words, f"--nsqd-http-address={nsq.nsqd_http_addresses[0]}"])


def test_a_dry_run_shows_them_and_changes_nothing(nsq: EmbeddedThread, capsys: Captured) -> None:
    Broker(nsq).queue("dead", DEFAULT_CHANNEL, [b"1", b"2"])
    wait_until(lambda: Broker(nsq).counts("dead", DEFAULT_CHANNEL).waiting == 2)
    before = Broker(nsq).counts("dead", DEFAULT_CHANNEL)
    assert dry_run(nsq, "--to=alive") == DONE
    captured = capsys.readouterr()
    assert captured.out == "1\n2\n"
    assert captured.err == (
        "emberq requeue-dead: would move 2 messages to alive; nothing was changed\n"
        "emberq requeue-dead: messages wait in dead/requeue-dead: 2 messages\n"
    )
    assert Broker(nsq).counts("dead", DEFAULT_CHANNEL) == before
    with closing(Client(address_of(nsq.nsqd_tcp_addresses[0]))) as client:
        client.sub("dead", DEFAULT_CHANNEL)
        client.rdy(2)
        assert [message.attempts for message in client.read_messages(2)] == [1, 1]


def test_a_dry_run_makes_no_channel_and_says_where_messages_wait(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1")
    assert dry_run(nsq) == DONE
    assert "would move 1 message to where" in (told := capsys.readouterr().err)
    assert "messages wait in dead, in no channel yet: 1 message\n" in told
    Broker(nsq).create_channel("dead", "archive")
    wait_until(lambda: Broker(nsq).counts("dead", "archive").waiting == 1)
    assert dry_run(nsq) == DONE
    assert "messages wait in dead/archive: 1 message\n" in (told := capsys.readouterr().err)
    assert "none is in the channel requeue-dead; --channel names another\n" in told
    assert dry_run(nsq, "--channel=archive", "--json") == DONE
    message, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (message["body"], message["to"]) == ("1", None)
    assert summary["waiting"] == [{"channel": None, "messages": 0}, {"channel": "archive", "messages": 1}]
    channels = http_of(nsq.nsqd_http_addresses[0]).get("/stats?format=json&topic=dead").json()["topics"][0]["channels"]
    assert [channel["channel_name"] for channel in channels] == ["archive"]


def test_a_dry_run_needs_an_address_for_http(capsys: Captured) -> None:
    assert main(["dead", "--dry-run", "--nsqd-tcp-address=127.0.0.1:1"]) == FAILED
    assert "Add --nsqd-http-address" in capsys.readouterr().err


def test_an_empty_channel_is_told_with_a_way_out(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1")
    assert Broker(nsq).take("dead", 1, channel="archive") == [b"1"]
    assert requeue_dead(nsq, idle="--idle=10ms") == DONE
    captured = capsys.readouterr()
    assert captured.out == "moved 0 messages from dead to alive\n"
    assert "--channel names another" in captured.err


def test_what_nsqd_gave_up_goes_back_by_itself(nsq: EmbeddedThread, capsys: Captured) -> None:
    note = DeadLetter(topic="alive", channel="c", id="1", attempts=3, timestamp_ns=1, reason="", body=b"1")
    letter = encode_dead_letter(note, max_bytes=1000)
    assert letter is not None
    publish(nsq, letter, b"bare")
    addresses = (f"--nsqd-tcp-address={address}" for address in nsq.nsqd_tcp_addresses)
    assert main(["dead", UNTIL_EMPTY, *addresses]) == DONE
    captured = capsys.readouterr()
    assert captured.out == "moved 1 message from dead to where they came from\n"
    assert "1 message stayed" in captured.err
    assert "--to" in captured.err
    assert alive(nsq) == [b"1"]
    assert left(nsq) == [b"bare"]


def test_a_terminal_shows_progress(nsq: EmbeddedThread, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(nsq, b"1", b"2")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    assert requeue_dead(nsq, "--count=2", idle=UNTIL_COUNTED) == DONE
    assert "dead → alive" in screen.text
    assert "2/2" in screen.text


def test_nsqds_are_found_by_nsqlookupd(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"1")
    wait_until(lambda: is_registered(nsq, "dead"))
    lookupd = f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}"
    assert main(["dead", "--to=alive", "--count=1", UNTIL_COUNTED, lookupd]) == DONE
    assert capsys.readouterr().out == "moved 1 message from dead to alive\n"


def test_a_topic_cannot_be_moved_to_itself(capsys: Captured) -> None:
    assert main(["dead", "--to=dead"]) == MISUSED
    assert "from a topic to itself" in capsys.readouterr().err


def test_nobody_there_is_told(capsys: Captured) -> None:
    assert main(["dead", "--to=alive", "--nsqd-tcp-address=127.0.0.1:1"]) == FAILED
    assert "no nsqd with the topic dead can be reached" in capsys.readouterr().err
