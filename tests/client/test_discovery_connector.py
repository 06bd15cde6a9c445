"""When a consumer connects where."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from emberq.client.discovery import Connector
from emberq.client.error import ConnectError
from tests.support.loop import advance
from tests.support.waiting import turns, until


class Network:
    """Addresses that can be reached or not."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.tried: Counter[str] = Counter()
        self.after_connect: Callable[[str], object] = lambda address: None

    async def connect(self, address: str) -> None:
        self.tried[address] += 1
        if address in self.down:
            raise ConnectError(address, "down")
        self.after_connect(address)


def connector(network: Network, *addresses: str, max_delay_s: float = 0.01) -> Connector:
    return Connector(network.connect, direct_addresses=addresses, discovery=None, max_delay_s=max_delay_s)


async def test_what_cannot_be_reached_is_told_at_once_and_then_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = Network("a")
    keeper = connector(network, "a", "b")
    for _ in range(13):
        await keeper.connect_all()
        advance(10)
    network.down.clear()
    await keeper.connect_all()
    keeper.lost("a")
    network.down.add("a")
    await keeper.connect_all()
    assert [message.partition(" in ")[0] for message in caplog.messages] == [
        "cannot consume from nsqd a: down; trying again"
    ] * 4


async def test_nothing_that_goes_wrong_ends_the_attempts(caplog: pytest.LogCaptureFixture) -> None:
    network = Network()
    keeper = connector(network, "a")
    await keeper.connect_all()

    def fail(address: str) -> None:
        network.after_connect = lambda address: None
        raise MemoryError(address)

    network.after_connect = fail
    running = asyncio.create_task(keeper.run())
    keeper.lost("a")
    await until(lambda: network.tried["a"] == 3)
    running.cancel()
    assert "cannot connect; trying again" in caplog.text


async def test_all_addresses_are_tried_even_if_one_is_down() -> None:
    network = Network("a")
    await connector(network, "a", "b").connect_all()
    assert network.tried == {"a": 1, "b": 1}


async def test_only_what_is_missing_is_tried_again_until_it_is_there() -> None:
    network = Network("a")
    keeper = connector(network, "a", "b")
    await keeper.connect_all()
    running = asyncio.create_task(keeper.run())
    await until(lambda: network.tried["a"] >= 3)
    network.down.clear()
    await until(lambda: keeper.is_complete)
    assert network.tried["b"] == 1
    running.cancel()


async def test_what_is_lost_is_connected_to_again() -> None:
    network = Network()
    keeper = connector(network, "a", "b")
    await keeper.connect_all()
    running = asyncio.create_task(keeper.run())
    for count in (2, 3):
        keeper.lost("a")
        await until(lambda count=count: network.tried["a"] == count)  # type: ignore[misc]
    assert network.tried["b"] == 1
    running.cancel()


async def test_a_connection_that_is_lost_at_once_every_time_is_not_tried_in_a_tight_loop() -> None:
    network = Network()
    keeper = connector(network, "a", max_delay_s=60)
    network.after_connect = keeper.lost
    await keeper.connect_all()
    running = asyncio.create_task(keeper.run())
    await until(lambda: network.tried["a"] == 2)
    await turns()
    assert network.tried["a"] == 2
    running.cancel()
