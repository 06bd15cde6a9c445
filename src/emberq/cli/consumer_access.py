"""How the `emberq` subcommands that consume a channel reach it: their flags, and what is made of them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from emberq.cli.connection_flags import (
    add_lookupd_flag,
    add_nsqd_tcp_flag,
    add_security_flags,
    nsqd_tcp_addresses,
)

if TYPE_CHECKING:
    from emberq.client import Consumer
    from emberq.client.config import ClientConfig

MAX_IN_FLIGHT = 200
"""As many messages as can be seen to in a moment."""

HINT = "--nsqd-tcp-address or --lookupd-http-address says where to look."
"""For a channel that cannot be reached."""


def add_consumer_flags(parser: argparse.ArgumentParser) -> None:
    """Read them with `client_config` and `make_consumer`."""
    add_nsqd_tcp_flag(parser)
    add_lookupd_flag(parser)
    add_security_flags(parser)


def make_consumer(
    arguments: argparse.Namespace,
    config: ClientConfig,
    *,
    topic: str,
    channel: str,
    max_in_flight: int,
    auto_touch: bool = False,
) -> Consumer:
    """A consumer that gives up on no message, however often it was tried: that is not for a command to decide."""
    from emberq.client import Consumer, ConsumerConfig

    return Consumer(
        topic,
        channel,
        nsqd_addresses=nsqd_tcp_addresses(arguments),
        lookupd_addresses=arguments.lookupd_http_address,
        config=ConsumerConfig(max_in_flight=max_in_flight, max_attempts=0, auto_touch=auto_touch),
        client_config=config,
    )
