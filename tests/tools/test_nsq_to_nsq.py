"""nsq_to_nsq copies messages, and answers those that it could copy."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from emberq.base.settings import OptionsError
from emberq.embedded import EmbeddedThread
from emberq.tools.client_flags import parse_client_option
from emberq.tools.nsq_to_nsq import NsqToNsqOptions, run
from tests.support.embedded import Broker
from tests.support.nsqd_process import NsqdProcess
from tests.support.waiting import until
from tests.tools.rig import running

NOBODY = "127.0.0.1:1"
NO_BACKOFF = (parse_client_option("max_backoff_duration,0"),)
AT_ONCE = (*NO_BACKOFF, parse_client_option("default_requeue_delay,0"), parse_client_option("max_attempts,0"))
"""What fails comes again at once, and for ever."""


def copying(source: Broker, *destinations: str, **details: Any) -> NsqToNsqOptions:
    given: dict[str, Any] = {
        "topic": ("t",),
        "destination_topic": "copy",
        "nsqd_tcp_address": (source.tcp_address,),
        "destination_nsqd_tcp_address": destinations,
        **details,
    }
    return NsqToNsqOptions(**given).validated()


def is_finished(broker: Broker, topic: str = "t") -> bool:
    """Neither the channel has messages, nor the topic, which keeps them until nsqlookupd has told of other channels."""
    return broker.unfinished(topic) == 0 and broker.counts(topic, "nsq_to_nsq").deferred == 0


async def test_messages_are_copied_and_finished(broker: Broker) -> None:
    bodies = [b"%d" % number for number in range(2_000)]
    broker.queue("t", "nsq_to_nsq", bodies)
    async with running(partial(run, copying(broker, broker.tcp_address))):
        await until(lambda: broker.message_count("copy") == 2_000 and is_finished(broker))
    assert Counter(broker.take("copy", 2_000)) == Counter(bodies)


@pytest.mark.nsq(nsqd_count=2, with_lookupd=False)  # or the destination would make the source's channel, too
async def test_without_a_destination_topic_each_topic_keeps_its_name(nsq: EmbeddedThread) -> None:
    source, target = Broker(nsq), Broker(nsq, number=1)
    source.queue("one", "nsq_to_nsq", [b"1"])
    source.queue("two", "nsq_to_nsq", [b"2"])
    options = copying(source, target.tcp_address, topic=("one", "two"), destination_topic="")
    async with running(partial(run, options)):
        await until(lambda: is_finished(source, "one") and is_finished(source, "two"))
    assert (target.take("one", 1), target.take("two", 1)) == ([b"1"], [b"2"])


@pytest.mark.nsq(nsqd_count=2)
@pytest.mark.parametrize("mode", ["round-robin", "hostpool", "epsilon-greedy", "unknown"])
async def test_messages_are_dealt_out_over_the_destinations(nsq: EmbeddedThread, mode: str) -> None:
    source, other = Broker(nsq), Broker(nsq, number=1)
    source.queue("t", "nsq_to_nsq", [b"x"] * 1_000)
    async with running(partial(run, copying(source, source.tcp_address, other.tcp_address, mode=mode))):
        await until(lambda: is_finished(source))
    counts = [broker.message_count("copy") for broker in (source, other)]
    assert sum(counts) == 1_000
    assert min(counts) > 0 if mode == "epsilon-greedy" else counts == [500, 500]


async def test_a_destination_that_is_away_is_left_out_and_its_messages_go_to_another(broker: Broker) -> None:
    bodies = [b"%d" % number for number in range(100)]
    broker.queue("t", "nsq_to_nsq", bodies)
    options = copying(broker, NOBODY, broker.tcp_address, consumer_opt=AT_ONCE)
    async with running(partial(run, options)):
        await until(lambda: is_finished(broker))
    assert Counter(broker.take("copy", 100)) == Counter(bodies)


async def test_a_destination_that_is_restarted_loses_nothing(
    nsq: EmbeddedThread, data_path: Path, tmp_path: Path
) -> None:
    source = Broker(nsq)
    bodies = [b"%d" % number for number in range(3_000)]
    source.queue("t", "nsq_to_nsq", bodies)

    def start_destination(*flags: str) -> NsqdProcess:
        return NsqdProcess(*flags, data_path=data_path, log_path=tmp_path / "log")

    with start_destination() as destination:
        address = f"127.0.0.1:{destination.tcp_port}"
        options = copying(source, address, consumer_opt=AT_ONCE, max_in_flight=50)
        async with running(partial(run, options)):
            await until(lambda: source.counts("t", "nsq_to_nsq").unfinished < 2_500)
            assert destination.terminate() == 0
            await until(lambda: source.counts("t", "nsq_to_nsq").requeued > 0)
            with start_destination(f"--tcp-address={address}") as restarted:
                await until(lambda: is_finished(source), timeout_s=60)
                consumer = restarted.consumer("copy", "check", rdy=2_500)
                arrived: set[bytes] = set()
                while len(arrived) < len(bodies):
                    message = consumer.read_message()
                    consumer.fin(message)
                    arrived.add(message.body)
    assert arrived == set(bodies)


async def test_what_cannot_be_published_is_requeued_with_a_delay(broker: Broker) -> None:
    broker.queue("t", "nsq_to_nsq", [b"x"] * 3)
    options = copying(broker, NOBODY, consumer_opt=NO_BACKOFF)
    async with running(partial(run, options)):
        await until(lambda: broker.counts("t", "nsq_to_nsq").deferred == 3)
    assert broker.counts("t", "nsq_to_nsq").requeued == 3


@pytest.mark.nsq(max_msg_size=1_000)
async def test_only_the_message_that_is_refused_stays_behind(broker: Broker) -> None:
    """The filter makes a message longer than it came, by writing numbers out; the destination refuses that one."""
    long_when_written = b'{"f":[' + b",".join([b"1e20"] * 190) + b"]}"
    broker.queue("t", "nsq_to_nsq", [b'{"f":1}', long_when_written, b'{"f":2}'])
    options = copying(broker, broker.tcp_address, whitelist_json_field=("f",), consumer_opt=NO_BACKOFF)
    async with running(partial(run, options)):
        await until(lambda: broker.message_count("copy") == 2)
        await until(lambda: broker.counts("t", "nsq_to_nsq").deferred == 1)
    assert Counter(broker.take("copy", 2)) == Counter([b'{"f":1}', b'{"f":2}'])


async def test_the_filter_decides_what_is_copied_dropped_and_tried_again(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.queue("t", "nsq_to_nsq", [b'{"f": 5, "g": 1}', b'{"f": "6"}', b"no JSON", b'{"g": 2}', b'{"f": "5"}'])
    options = copying(
        broker,
        broker.tcp_address,
        require_json_field="f",
        require_json_value="5",
        whitelist_json_field=("f",),
        consumer_opt=NO_BACKOFF,
    )
    with caplog.at_level(logging.INFO, logger="emberq.tools.nsq_to_nsq"):
        async with running(partial(run, options)):
            await until(lambda: broker.message_count("copy") == 2)
            await until(lambda: broker.counts("t", "nsq_to_nsq").deferred == 1)
            await until(lambda: broker.counts("t", "nsq_to_nsq").unfinished == 1)
        assert Counter(broker.take("copy", 2)) == Counter([b'{"f":5}', b'{"f":"5"}'])
    assert sum("unable to decode JSON" in line for line in caplog.messages) == 1
    assert sum("missing field to check required value: f" in line for line in caplog.messages) == 1


async def test_timing_is_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.queue("t", "nsq_to_nsq", [b"x"] * 250)
    with caplog.at_level(logging.INFO, logger="emberq.tools.host_pool"):
        async with running(partial(run, copying(broker, broker.tcp_address))):
            await until(lambda: is_finished(broker))
    assert [line.partition(" - ")[0] for line in caplog.messages if "finished" in line] == ["[aggregate]: finished 250"]


@pytest.mark.parametrize(
    ("details", "complaint"),
    [
        ({"topic": ()}, "--topic and --channel are required"),
        ({"channel": ""}, "--topic and --channel are required"),
        ({"topic": ("t!",)}, "--topic is invalid"),
        ({"destination_topic": "t!"}, "--destination-topic is invalid"),
        ({"channel": "c!"}, "--channel is invalid"),
        ({"nsqd_tcp_address": ()}, "--nsqd-tcp-address or --lookupd-http-address required"),
        ({"lookupd_http_address": ("a:1",)}, "use --nsqd-tcp-address or --lookupd-http-address not both"),
        ({"destination_nsqd_tcp_address": ()}, "--destination-nsqd-tcp-address required"),
    ],
)
def test_options_that_cannot_work_are_refused(details: dict[str, Any], complaint: str) -> None:
    given = {"topic": ("t",), "nsqd_tcp_address": ("a:1",), "destination_nsqd_tcp_address": ("b:1",)}
    with pytest.raises(OptionsError, match=complaint):
        NsqToNsqOptions(**(given | details)).validated()
