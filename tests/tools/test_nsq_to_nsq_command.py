"""The nsq_to_nsq command as a user meets it."""

from __future__ import annotations

import signal

import pytest

from tests.support.embedded import Broker
from tests.support.tool_process import ToolProcess, run_tool
from tests.support.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_copies_until_a_signal_ends_it_with_status_0(broker: Broker, number: signal.Signals) -> None:
    broker.queue("t", "nsq_to_nsq", [b"one", b"two"])
    flags = [
        "--topic=t",
        "--destination-topic=copy",
        f"--nsqd-tcp-address={broker.tcp_address}",
        f"--destination-nsqd-tcp-address={broker.tcp_address}",
    ]
    with ToolProcess("nsq_to_nsq", *flags) as tool:
        wait_until(lambda: broker.message_count("copy") == 2, timeout_s=20)
        assert tool.stop(number) == 0
    assert broker.counts("t", "nsq_to_nsq").unfinished == 0


def test_missing_options_are_status_1() -> None:
    done = run_tool("nsq_to_nsq")
    assert done.stderr.endswith(b" --topic and --channel are required\n")
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_bad_option_for_publishing_is_a_mistake_on_the_command_line() -> None:
    done = run_tool("nsq_to_nsq", "--producer-opt=deflate_level,17")
    assert done.stderr.startswith(
        b'invalid value "deflate_level,17" for flag -producer-opt: invalid deflate_level ! 17 > 9\n  nsq_to_nsq --help '
    )
    assert done.returncode == 2
