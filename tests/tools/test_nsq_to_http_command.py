"""The nsq_to_http command as a user meets it. The web server it sends to is nsqd's own."""

from __future__ import annotations

import signal

import pytest

from emberq.embedded import EmbeddedThread
from tests.support.embedded import Broker
from tests.support.tool_process import ToolProcess, run_tool
from tests.support.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_sends_until_a_signal_ends_it_with_status_0(
    nsq: EmbeddedThread, broker: Broker, number: signal.Signals
) -> None:
    broker.queue("t", "nsq_to_http", [b"one", b"two"])
    url = f"http://{nsq.nsqd_http_addresses[0]}/pub?topic=copy"
    flags = ["--topic=t", f"--nsqd-tcp-address={broker.tcp_address}", f"--post={url}"]
    with ToolProcess("nsq_to_http", *flags) as tool:
        wait_until(lambda: broker.message_count("copy") == 2, timeout_s=20)
        assert tool.stop(number) == 0
    assert broker.counts("t", "nsq_to_http").unfinished == 0
    assert sorted(broker.take("copy", 2)) == [b"one", b"two"]


def test_missing_options_are_status_1() -> None:
    done = run_tool("nsq_to_http", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1")
    assert done.stderr.endswith(b" --get or --post required\n")
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_bad_number_is_a_mistake_on_the_command_line() -> None:
    done = run_tool("nsq_to_http", "--sample=x")
    assert done.stderr.startswith(b'invalid value "x" for flag -sample: parse error\n  nsq_to_http --help ')
    assert done.returncode == 2
