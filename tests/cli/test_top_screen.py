"""The live screen in a real terminal, as `emberq top` shows it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from emberq.embedded import EmbeddedThread
from tests.cli.pseudo_terminal import ENTER_SECOND_SCREEN, LEAVE_SECOND_SCREEN, PseudoTerminal
from tests.support.cluster_rig import channel_entry, topic_entry
from tests.support.embedded import create
from tests.support.recording_daemon import RecordingDaemon

COMMAND = ("top", "--interval=100ms")
INFO = {"broadcast_address": "127.0.0.1", "hostname": "h", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}
CLEAR = b"\x1b[2J"


@pytest.fixture
def terminal(nsq: EmbeddedThread) -> Iterator[PseudoTerminal]:
    """`emberq top`, showing topic `clicks` and `orders`."""
    create(nsq, "clicks", "archive")
    create(nsq, "orders", "mail")
    with PseudoTerminal(*COMMAND, f"--nsqd-http-address={nsq.nsqd_http_addresses[0]}") as running:
        running.await_drawn("archive")
        yield running


def assert_left_as_found(terminal: PseudoTerminal) -> None:
    assert terminal.drawn.count(ENTER_SECOND_SCREEN) == terminal.drawn.count(LEAVE_SECOND_SCREEN) == 1
    assert terminal.modes == terminal.modes_before
    assert b"Traceback" not in terminal.drawn


def test_q_quits_and_leaves_the_terminal_as_it_was(terminal: PseudoTerminal) -> None:
    terminal.press("q")
    assert terminal.await_end() == 0
    assert_left_as_found(terminal)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_just_as_well(terminal: PseudoTerminal, number: signal.Signals, status: int) -> None:
    terminal.process.send_signal(number)
    assert terminal.await_end() == status
    assert_left_as_found(terminal)


def test_it_is_drawn_again_and_again_without_clearing(terminal: PseudoTerminal) -> None:
    for _ in range(3):
        terminal.await_drawn("archive")
    assert CLEAR not in terminal.drawn


def test_keys_sort_and_filter(terminal: PseudoTerminal) -> None:
    terminal.press("n")
    terminal.await_drawn("▲TOPIC")
    terminal.press("/ord\r")
    terminal.await_drawn("filter: \x1b[0mord")
    start = len(terminal.drawn)
    terminal.await_drawn("mail")
    assert b"archive" not in terminal.drawn[start:]


def test_another_size_is_noticed(terminal: PseudoTerminal) -> None:
    terminal.resize(columns=200, lines=30)
    terminal.await_drawn("ON DISK")


def test_an_nsqd_that_goes_down_is_shown_and_so_is_its_return() -> None:
    answers = {"/info": INFO, "/stats": {"topics": [topic_entry("t", channel_entry("c"))]}}
    with (
        RecordingDaemon("nsqd", answers, []) as nsqd,
        PseudoTerminal(*COMMAND, f"--nsqd-http-address={nsqd.address}") as terminal,
    ):
        terminal.await_drawn("1 channel")
        del nsqd.answers["/info"]
        terminal.await_drawn("no answer (figures of ")
        nsqd.answers["/stats"] = {"topics": [topic_entry("t", channel_entry("c", depth=4711))]}
        nsqd.answers["/info"] = INFO
        terminal.await_drawn("4,711")
        start = len(terminal.drawn)
        terminal.await_drawn("4,711")
        assert b"no answer" not in terminal.drawn[start:]
