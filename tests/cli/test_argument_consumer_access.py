from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from emberq.cli.argument import add_consumer_flags, client_config, lookupd_secret, make_consumer
from emberq.cli.terminal import CommandError, command_parser
from emberq.client import Consumer, ConsumerConfig
from emberq.embedded import EmbeddedThread
from emberq.sync import Producer
from tests.support.looking import is_registered
from tests.support.waiting import wait_until


def consumer(*flags: str) -> Consumer:
    parser = command_parser("emberq try", "Try it.")
    add_consumer_flags(parser)
    arguments: argparse.Namespace = parser.read(flags)
    return make_consumer(arguments, client_config(arguments), topic="t", channel="c", max_in_flight=1)


def publish(nsq: EmbeddedThread) -> None:
    with Producer(nsq.nsqd_tcp_addresses[0]) as producer:
        producer.publish("t", b"x")


@pytest.mark.parametrize("flag", ["nsqd-tcp-address", "lookupd-http-address"])
async def test_the_flags_say_where_the_channel_is(nsq: EmbeddedThread, flag: str) -> None:
    publish(nsq)
    wait_until(lambda: is_registered(nsq, "t"))
    (address,) = nsq.nsqd_tcp_addresses if flag == "nsqd-tcp-address" else nsq.lookupd_http_addresses
    async with consumer(f"--{flag}={address}") as consuming:
        message = await anext(aiter(consuming))
        assert message.body == b"x"
        message.finish()


async def test_a_message_is_not_given_up_however_often_it_was_tried(nsq: EmbeddedThread) -> None:
    publish(nsq)
    tries = ConsumerConfig().max_attempts + 2
    async with consumer(f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}") as consuming:
        messages = aiter(consuming)
        for attempts in range(1, tries):
            message = await anext(messages)
            assert message.attempts == attempts
            message.requeue(0, backoff=False)
        message = await anext(messages)
        assert message.attempts == tries
        message.finish()


def test_the_secret_for_nsqlookupds_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    parser = command_parser("emberq try", "Try it.")
    add_consumer_flags(parser)
    assert lookupd_secret(parser.read([f"--lookupd-secret-file={path}"])) == b"s3cret"
    with pytest.raises(CommandError, match=r"^--lookupd-secret-file: .*No such file"):
        consumer("--lookupd-http-address=127.0.0.1:1", f"--lookupd-secret-file={path}.no")
