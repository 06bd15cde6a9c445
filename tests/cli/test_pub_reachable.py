"""Finding out whether an nsqd is there."""

from __future__ import annotations

import pytest

from emberq.cli.pub import check_any_is_reachable
from emberq.client import ClientConfig, ConnectError
from emberq.embedded import EmbeddedThread

NOWHERE = "127.0.0.1:1"


async def test_one_of_several_is_enough(nsq: EmbeddedThread) -> None:
    await check_any_is_reachable([NOWHERE, *nsq.nsqd_tcp_addresses], ClientConfig())


async def test_with_none_the_refusal_is_raised() -> None:
    with pytest.raises(ConnectError, match=NOWHERE):
        await check_any_is_reachable([NOWHERE], ClientConfig())
