"""The nsq_stat command as a user meets it: what it prints and how it exits."""

from __future__ import annotations

import signal
import subprocess
from contextlib import closing

import pytest

from emberq.embedded import EmbeddedThread
from emberq.tools.nsq_stat import HEADER
from tests.support.embedded import create, publish
from tests.support.fork_server import PIPE, ForkedProcess, run_forked_text
from tests.support.waiting import PATIENCE_S


def nsq_stat(*flags: str) -> subprocess.CompletedProcess[str]:
    return run_forked_text("nsq_stat", *flags)


@pytest.mark.conformance(259)
def test_as_many_rows_as_asked_for_are_printed_below_the_header(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    publish(nsq, "t", b"x")
    (nsqd,) = nsq.nsqd_http_addresses
    done = nsq_stat("--topic=t", "--channel=c", f"--nsqd-http-address={nsqd}", "--count=2", "--interval=10ms")
    row = "      0       0 |       1       1       0     0     0 |       0       0            1       0"
    assert done.stdout.splitlines() == [*HEADER.splitlines(), row, row]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.conformance(259)
def test_an_unknown_channel_is_told_with_status_1(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    done = nsq_stat("--topic=t", "--channel=none", f"--nsqd-http-address={nsq.nsqd_http_addresses[0]}", "--count=2")
    assert done.stderr.endswith(" ERROR: failed to find channel(none) in stats metadata for topic(t)\n")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_mistake_on_the_command_line_is_told_with_status_2() -> None:
    done = nsq_stat("--count=many")
    assert done.stderr.startswith('invalid value "many" for flag -count: parse error\n  nsq_stat --help ')
    assert done.returncode == 2


def test_options_that_cannot_work_are_told_with_status_1() -> None:
    done = nsq_stat("--topic=t")
    assert done.stderr.endswith(" --topic and --channel are required\n")
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_status_0(nsq: EmbeddedThread, number: signal.Signals) -> None:
    create(nsq, "t", "c")
    flags = ("--topic=t", "--channel=c", f"--nsqd-http-address={nsq.nsqd_http_addresses[0]}", "--interval=1h")
    with closing(ForkedProcess("nsq_stat", *flags, stdout=PIPE, stderr=PIPE)) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert [running.stdout.readline().decode().rstrip() for _ in range(2)] == HEADER.splitlines()
        running.send_signal(number)
        assert (running.wait(PATIENCE_S), running.stderr.read()) == (0, b"")


def test_a_closed_pipe_is_no_traceback(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    flags = ("--topic=t", "--channel=c", f"--nsqd-http-address={nsq.nsqd_http_addresses[0]}", "--interval=5ms")
    with closing(ForkedProcess("nsq_stat", *flags, stdout=PIPE, stderr=PIPE)) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.wait(PATIENCE_S) == 1
        assert b"Traceback" not in running.stderr.read()
