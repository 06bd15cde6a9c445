"""The to_nsq command as a user meets it."""

from __future__ import annotations

import signal

import pytest

from tests.support.embedded import Broker
from tests.support.tool_process import ToolProcess, run_tool
from tests.support.waiting import wait_until


@pytest.mark.conformance(260)
def test_it_publishes_its_input_to_the_end_and_exits_with_status_0(broker: Broker) -> None:
    done = run_tool("to_nsq", "--topic=t", f"--nsqd-tcp-address={broker.tcp_address}", typed=b"abc\n\ndef")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.endswith(b" INF connected to nsqd %b\n" % broker.tcp_address.encode())
    assert done.stderr.count(b"\n") == 1
    assert broker.take("t", 2) == [b"abc", b"de"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_0_though_its_input_goes_on(broker: Broker, number: signal.Signals) -> None:
    with ToolProcess("to_nsq", "--topic=t", f"--nsqd-tcp-address={broker.tcp_address}") as tool:
        tool.write(b"one\n")
        wait_until(lambda: broker.message_count("t") == 1, timeout_s=20)
        assert tool.stop(number) == 0


def test_an_nsqd_that_is_not_there_is_status_1() -> None:
    done = run_tool("to_nsq", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1", typed=b"one\n")
    assert done.returncode == 1
    assert b"127.0.0.1:1: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_it_has_no_version() -> None:
    done = run_tool("to_nsq", "--version")
    assert done.stderr.startswith(b"flag provided but not defined: -version\n  to_nsq --help lists all flags.\n")
    assert done.returncode == 2
