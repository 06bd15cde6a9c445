"""The tail command, against a real nsqd."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading

import pytest

from emberq.cli.tail import main
from emberq.cli.terminal import DONE, FAILED, INTERRUPTED, MISUSED
from emberq.embedded import EmbeddedThread
from emberq.sync import Producer
from tests.cli.screen import Screen
from tests.support.embedded import Broker
from tests.support.looking import channels, is_registered
from tests.support.waiting import wait_until

Captured = pytest.CaptureFixture[str]


def tail(nsq: EmbeddedThread, *words: str) -> int:
    return main([*words, f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}"])


def publish(nsq: EmbeddedThread, *bodies: bytes) -> None:
    with Producer(nsq.nsqd_tcp_addresses) as producer:
        producer.publish_many("t", bodies)


def test_a_pipe_gets_the_bodies_as_they_are(nsq: EmbeddedThread, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    publish(nsq, b'{"a":1}', b"\xff\x00", b"third")
    assert tail(nsq, "t", "-n", "2") == DONE
    assert capfdbinary.readouterr().out == b'{"a":1}\n\xff\x00\n'


def test_json_tells_everything_about_a_message(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"x")
    assert tail(nsq, "t", "-n", "1", "--json") == DONE
    document = json.loads(capsys.readouterr().out)
    assert document["body"] == "x"
    assert document["attempts"] == 1
    assert document["nsqd"] == nsq.nsqd_tcp_addresses[0]


def test_a_terminal_gets_json_laid_out(nsq: EmbeddedThread, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(nsq, b'{"a":1}')
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    assert tail(nsq, "t", "-n", "1") == DONE
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.text)
    assert '{\n  "a": 1\n}\n' in plain
    assert f"from {nsq.nsqd_tcp_addresses[0]}" in plain


def test_the_channel_goes_with_it(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    tail(nsq, "t", "-n", "1")
    wait_until(lambda: channels(nsq, "t") == [])


def test_a_named_channel_loses_only_what_was_shown(nsq: EmbeddedThread, broker: Broker, capsys: Captured) -> None:
    publish(nsq, b"1", b"2", b"3")
    assert tail(nsq, "t", "--channel=c", "-n", "1") == DONE
    assert capsys.readouterr().out == "1\n"
    assert broker.counts("t", "c").unfinished == 2
    assert sorted(broker.take("t", 2, channel="c")) == [b"2", b"3"]


def test_it_runs_until_ctrl_c(nsq: EmbeddedThread, capsys: Captured) -> None:
    def interrupt_when_subscribed() -> None:
        wait_until(lambda: channels(nsq, "t") != [])
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    waiting = threading.Thread(target=interrupt_when_subscribed)
    waiting.start()
    assert tail(nsq, "t") == INTERRUPTED
    waiting.join()
    assert capsys.readouterr().out == ""


def test_nsqlookupd_is_asked_for_the_topic(nsq: EmbeddedThread, capsys: Captured) -> None:
    publish(nsq, b"x")
    wait_until(lambda: is_registered(nsq, "t"))
    assert main(["t", "-n", "1", f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}"]) == DONE
    assert capsys.readouterr().out == "x\n"


def test_nobody_there_is_told_instead_of_showing_nothing(capsys: Captured) -> None:
    assert main(["t", "--nsqd-tcp-address=127.0.0.1:1"]) == FAILED
    assert "no nsqd can be reached at 127.0.0.1:1" in capsys.readouterr().err


def test_a_wrong_channel_name_is_a_mistake(capsys: Captured) -> None:
    assert main(["t", "--channel=no channel"]) == MISUSED
    assert "is not the name of a channel" in capsys.readouterr().err
