"""nsq_tail prints what is published."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from emberq import __version__
from emberq.base.program import ToolError
from emberq.base.settings import OptionsError
from emberq.tools.nsq_tail import TailOptions, print_messages
from tests.support.embedded import Broker
from tests.support.waiting import PATIENCE_S, until
from tests.tools.rig import running


class Output:
    """A file that is printed to."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "output"
        self.descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT)

    @property
    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path)


def options_for(broker: Broker, **details: Any) -> TailOptions:
    given: dict[str, Any] = {"nsqd_tcp_address": (broker.tcp_address,), "topic": ("t",), **details}
    return TailOptions(**given).validated()


async def test_messages_are_printed_one_a_line_and_finished(broker: Broker, output: Output) -> None:
    broker.publish("t", [b"first", b"second"])
    options = options_for(broker, channel="c")
    async with running(lambda stop: print_messages(options, stop, output=output.descriptor)):
        await until(lambda: output.lines == ["first", "second"])
        broker.publish("t", [b"third"])
        await until(lambda: output.lines[2:] == ["third"])
        await until(lambda: broker.counts("t", "c").unfinished == 0)
        assert broker.user_agents("t", "c") == [f"nsq_tail/1.3.0-emberq emberq/{__version__}"]


async def test_several_topics_are_told_apart_by_their_names(broker: Broker, output: Output) -> None:
    broker.publish("one", [b"a"] * 50)
    broker.publish("two", [b"b"] * 50)
    options = options_for(broker, topic=("one", "two"), print_topic=True)
    async with running(lambda stop: print_messages(options, stop, output=output.descriptor)):
        await until(lambda: Counter(output.lines) == {"one | a": 50, "two | b": 50})


@pytest.mark.conformance(261)
async def test_with_n_it_ends_after_so_many_and_the_rest_stays(broker: Broker, output: Output) -> None:
    broker.publish("t", [b"1", b"2", b"3", b"4", b"5"])
    options = options_for(broker, channel="c", n=2)
    await asyncio.wait_for(print_messages(options, asyncio.Event(), output=output.descriptor), timeout=PATIENCE_S)
    assert output.lines == ["1", "2"]
    await until(lambda: broker.counts("t", "c").waiting == 3)


async def test_n_counts_the_messages_of_each_topic_by_itself(broker: Broker, output: Output) -> None:
    broker.publish("one", [b"a"] * 2)
    broker.publish("two", [b"b"])
    options = options_for(broker, topic=("one", "two"), n=3)
    async with running(lambda stop: print_messages(options, stop, output=output.descriptor)) as task:
        await until(lambda: len(output.lines) == 3)
        assert not task.done()
        broker.publish("one", [b"a"])
        await asyncio.wait_for(asyncio.shield(task), timeout=PATIENCE_S)
    assert Counter(output.lines) == {"a": 3, "b": 1}


async def test_without_a_channel_it_has_one_of_its_own_and_takes_nothing_from_others(
    broker: Broker, output: Output
) -> None:
    broker.create_channel("t", "theirs")
    options = options_for(broker)
    assert re.fullmatch(r"tail\d{6}#ephemeral", options.channel)
    async with running(lambda stop: print_messages(options, stop, output=output.descriptor)):
        await until(lambda: broker.user_agents("t", options.channel) != [])
        broker.publish("t", [b"x"])
        await until(lambda: output.lines == ["x"])
    assert broker.counts("t", "theirs").waiting == 1
    await until(lambda: broker.counts("t", options.channel).unfinished == 0)


async def test_when_nobody_reads_its_output_it_ends_and_everything_goes_back(broker: Broker) -> None:
    broker.publish("t", [b"1", b"2"])
    options = options_for(broker, channel="c")
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(ToolError, match="failed to write to stdout - Broken pipe"):
        await asyncio.wait_for(print_messages(options, asyncio.Event(), output=writing), timeout=PATIENCE_S)
    await until(lambda: broker.counts("t", "c").waiting == 2)
    os.close(writing)


def test_max_in_flight_is_never_more_than_n() -> None:
    limits = {
        n: TailOptions(nsqd_tcp_address=("a:1",), topic=("t",), n=n).validated().max_in_flight for n in (0, 5, 500)
    }
    assert limits == {0: 200, 5: 5, 500: 200}


def test_a_topic_is_required() -> None:
    with pytest.raises(OptionsError, match="--topic required"):
        TailOptions(nsqd_tcp_address=("a:1",)).validated()
