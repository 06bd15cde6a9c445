"""The pub command, against a real nsqd."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emberq.cli.pub import main
from emberq.cli.tail import main as tail
from emberq.cli.terminal import DONE, FAILED, INTERRUPTED, MISUSED
from emberq.embedded import EmbeddedThread
from emberq.nsqd.options import TlsRequired
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.screen import Screen
from tests.support.certificates import Authority
from tests.support.embedded import Broker
from tests.support.waiting import wait_until

Captured = pytest.CaptureFixture[str]
BLOCKS_AHEAD = 4
"""Input that is read in so many goes is not read to its end before what came first is confirmed."""


def pub(nsq: EmbeddedThread, *words: str) -> int:
    return main([*words, *(f"--nsqd-tcp-address={address}" for address in nsq.nsqd_tcp_addresses)])


def bodies_in(nsq: EmbeddedThread) -> list[bytes]:
    return Broker(nsq).take_all("t")


@contextmanager
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a pipe in the block; gives the end to write to."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield writer


def unread_bytes(pipe: int) -> int:
    """What nobody has read yet of what was written to a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


def test_arguments_are_messages(nsq: EmbeddedThread, capsys: Captured) -> None:
    assert pub(nsq, "t", '{"id": 1}', "zwei ü") == DONE
    assert capsys.readouterr().out == "published 2 messages to t\n"
    assert bodies_in(nsq) == [b'{"id": 1}', "zwei ü".encode()]


def test_each_line_of_a_file_is_a_message(nsq: EmbeddedThread, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n\n2\n3")
    assert pub(nsq, "t", "-f", str(path), "--batch=2") == DONE
    captured = capsys.readouterr()
    assert captured.out == "published 3 messages to t\n"
    assert captured.err == "emberq pub: 1 empty line skipped: NSQ has no empty messages\n"
    assert bodies_in(nsq) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("words", [[], ["-f", "-"]])
def test_without_messages_standard_input_is_read(
    nsq: EmbeddedThread, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    with standard_input(monkeypatch) as writer:
        os.write(writer, b"1\n2\n")
        os.close(writer)
        assert pub(nsq, "t", *words) == DONE
    assert bodies_in(nsq) == [b"1", b"2"]


def test_a_deferred_message_comes_later(nsq: EmbeddedThread) -> None:
    assert pub(nsq, "t", "tea", "--defer=1ms") == DONE
    assert bodies_in(nsq) == [b"tea"]


def test_a_rate_still_publishes_everything(nsq: EmbeddedThread) -> None:
    assert pub(nsq, "t", *"abcdef", "--rate=1000") == DONE
    assert bodies_in(nsq) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_json_tells_the_counts(nsq: EmbeddedThread, capsys: Captured) -> None:
    assert pub(nsq, "t", "x", "--json") == DONE
    result = json.loads(capsys.readouterr().out)
    assert result.pop("seconds") >= 0
    assert result == {"topic": "t", "published": 1, "skipped_empty": 0, "complete": True}


def test_a_terminal_shows_progress_and_the_result_below_it(
    nsq: EmbeddedThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n2\n\n")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    assert pub(nsq, "t", "-f", str(path)) == DONE
    assert screen.text.index("2/2") < screen.text.index("published 2 messages to t")


def test_ctrl_c_tells_how_far_it_got(nsq: EmbeddedThread, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def interrupt_when_confirmed(writer: int) -> None:
        for piece in (b"1\n2\n", *[b"unfinished"] * BLOCKS_AHEAD):
            os.write(writer, piece)
            wait_until(lambda: unread_bytes(writer) == 0)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with standard_input(monkeypatch) as writer:
        waiting = threading.Thread(target=interrupt_when_confirmed, args=(writer,))
        waiting.start()
        assert pub(nsq, "t", "--json") == INTERRUPTED
        waiting.join()
        os.close(writer)
    result = json.loads(capsys.readouterr().out)
    assert (result["published"], result["complete"]) == (2, False)


def test_an_nsqd_that_wants_tls_is_believed_if_its_authority_is(tmp_path: Path, capsys: Captured) -> None:
    authority = Authority(tmp_path, "ca")
    with EmbeddedThread(**authority.issue("nsqd").options(), tls_required=TlsRequired.YES) as nsq:
        assert pub(nsq, "t", "x", f"--tls-root-ca-file={authority.path}") == DONE
        assert pub(nsq, "t", "x", "--tls-insecure") == DONE
        assert pub(nsq, "t", "x", "--tls") == FAILED
        assert "--tls-root-ca-file names the one to trust" in capsys.readouterr().err
        assert pub(nsq, "t", "x") == FAILED
        assert "takes only TLS: add --tls" in capsys.readouterr().err
        tail_flags = [f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}", "--tls"]
        assert tail(["t", "-n1", *tail_flags]) == FAILED
        assert "--tls-root-ca-file names the one to trust" in capsys.readouterr().err


def test_nothing_is_drawn_into_the_line_that_is_being_typed(nsq: EmbeddedThread) -> None:
    address = f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}"
    with PseudoTerminal("pub", "t", address) as terminal:
        terminal.await_drawn("Ctrl-D ends\r\n")  # or what is typed might be echoed before the end of the line
        for line in ("one", "two"):
            terminal.press(f"{line}\n")
            terminal.await_drawn(line)
        terminal.press("\x04")
        assert terminal.await_end() == DONE
    _, _, typed = terminal.drawn.partition(b"Ctrl-D ends\r\n")
    assert typed == b"one\r\ntwo\r\npublished 2 messages to t\r\n"


def test_nobody_there_is_told_at_once(capsys: Captured) -> None:
    assert main(["t", "x", "--nsqd-tcp-address=127.0.0.1:1"]) == FAILED
    assert "Is nsqd running there?" in capsys.readouterr().err


@pytest.mark.nsq(max_msg_size=10)
def test_a_message_that_nsqd_refuses_is_a_failure(nsq: EmbeddedThread, capsys: Captured) -> None:
    assert pub(nsq, "t", "much too long for it") == FAILED
    captured = capsys.readouterr()
    assert captured.out == "published 0 messages to t, then it ended early\n"
    assert "E_BAD_MESSAGE" in captured.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no topic", "x"], "is not the name of a topic"),
        (["t", "x", "-f", "file"], "one of them will do"),
        (["t", "x", "--rate=0"], "above 0"),
    ],
)
def test_mistakes_are_told(words: list[str], told: str, capsys: Captured) -> None:
    assert main(words) == MISUSED
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: Captured) -> None:
    assert main(["t", "-f", str(tmp_path / "no")]) == FAILED
    assert "--file: " in capsys.readouterr().err
