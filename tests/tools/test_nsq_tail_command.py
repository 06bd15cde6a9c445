"""The nsq_tail command as a user meets it."""

from __future__ import annotations

import re
import signal

import pytest

from tests.support.embedded import Broker
from tests.support.tool_process import ToolProcess, run_tool

TIME = rb"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d"


def test_version_is_printed_on_standard_output() -> None:
    done = run_tool("nsq_tail", "--version")
    assert re.fullmatch(rb"nsq_tail v1\.3\.0-emberq \(built w/python3\.\d+\.\d+\S*\)\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.conformance(261)
def test_with_n_it_prints_so_many_and_exits_with_status_0(broker: Broker) -> None:
    broker.publish("t", [b"one", b"two", b"three"])
    done = run_tool("nsq_tail", "--topic=t", "-n", "2", f"--nsqd-tcp-address={broker.tcp_address}")
    assert (done.returncode, done.stdout) == (0, b"one\ntwo\n")
    connected = (
        TIME + rb" INF connected to nsqd " + re.escape(broker.tcp_address.encode()) + rb", t/tail\d+#ephemeral\n"
    )
    assert re.fullmatch(TIME + rb" Adding consumer for topic: t\n" + connected, done.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_0(broker: Broker, number: signal.Signals) -> None:
    broker.publish("t", [b"one"])
    with ToolProcess("nsq_tail", "--topic=t", f"--nsqd-tcp-address={broker.tcp_address}") as tail:
        assert tail.read_line() == b"one\n"
        assert tail.stop(number) == 0


def test_an_nsqd_that_is_not_there_is_status_1() -> None:
    done = run_tool("nsq_tail", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1")
    *_, last = done.stderr.splitlines()
    assert re.fullmatch(TIME + rb" cannot connect to nsqd 127\.0\.0\.1:1", last)
    assert (done.returncode, done.stdout) == (1, b"")


def test_an_option_of_the_client_that_does_not_exist_is_a_mistake_on_the_command_line() -> None:
    done = run_tool("nsq_tail", "--topic=t", "--consumer-opt=bogus,1")
    first, second, *_ = done.stderr.splitlines()
    assert first == b'invalid value "bogus,1" for flag -consumer-opt: invalid option bogus'
    assert (second, done.returncode) == (b"  nsq_tail --help lists all flags.", 2)
