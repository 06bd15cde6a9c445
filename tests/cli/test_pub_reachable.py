"""Finding out whether an nsqd is there."""

from __future__ import annotations

import asyncio

import pytest

from emberq.cli.pub import check_any_is_reachable
from emberq.client import ClientConfig, ConnectError
from emberq.embedded import EmbeddedThread

NOWHERE = "127.0.0.1:1"


def test_one_of_several_is_enough(nsq: EmbeddedThread) -> None:
    asyncio.run(check_any_is_reachable([NOWHERE, *nsq.nsqd_tcp_addresses], ClientConfig()))


def test_with_none_the_refusal_is_raised() -> None:
    with pytest.raises(ConnectError, match=NOWHERE):
        asyncio.run(check_any_is_reachable([NOWHERE], ClientConfig()))
