from __future__ import annotations

import pytest

from emberq.cluster.action import NothingToPeekError, PeekUnknownError, peek
from emberq.cluster.upstream import UpstreamsFailedError
from emberq.embedded import EmbeddedThread
from tests.support.cluster_rig import DEAD, REFUSED, make_upstreams
from tests.support.embedded import create, publish
from tests.support.recording_daemon import RecordingDaemon

pytestmark = pytest.mark.loop("uvloop")


async def bodies(*nsqds: str, count: int = 10) -> list[bytes]:
    found = await peek(make_upstreams(), nsqds, topic="t", channel="c", count=count)
    return [message.body for message in found.value]


async def test_waiting_messages_are_shown_and_stay(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    publish(nsq, "t", b"first", b"\xff\x00", "grüße".encode())
    (nsqd,) = nsq.nsqd_http_addresses
    assert await bodies(nsqd) == await bodies(nsqd) == [b"first", b"\xff\x00", "grüße".encode()]


@pytest.mark.nsq(nsqd_count=2)
async def test_the_oldest_of_several_nsqds_come_first(nsq: EmbeddedThread) -> None:
    for node in (0, 1):
        create(nsq, "t", "c", node=node)
    for number in range(4):
        publish(nsq, "t", b"%d" % number, node=number % 2)
    assert await bodies(*nsq.nsqd_http_addresses, count=3) == [b"0", b"1", b"2"]


@pytest.mark.nsq(nsqd_count=2)
async def test_an_nsqd_without_the_channel_does_not_matter_if_another_has_it(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c", node=0)
    publish(nsq, "t", b"here", node=0)
    found = await peek(make_upstreams(), nsq.nsqd_http_addresses, topic="t", channel="c", count=10)
    assert ([message.body for message in found.value], found.warnings) == ([b"here"], ())


async def test_a_channel_that_nobody_has_is_told(nsq: EmbeddedThread) -> None:
    create(nsq, "t")
    with pytest.raises(NothingToPeekError, match="no nsqd has a channel c of a topic t"):
        await bodies(*nsq.nsqd_http_addresses)


async def test_an_nsqd_that_has_no_peek_is_told_of() -> None:
    with (
        RecordingDaemon("nsqd", {}, []) as others,
        pytest.raises(PeekUnknownError, match=f"{others.address} has no peek: only emberq's nsqd can show"),
    ):
        await bodies(others.address)


async def test_beside_emberqs_nsqd_one_without_peek_is_a_warning(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    (ours,) = nsq.nsqd_http_addresses
    with RecordingDaemon("nsqd", {}, []) as others:
        found = await peek(make_upstreams(), [ours, others.address, DEAD], topic="t", channel="c", count=10)
    assert found.value == []
    assert found.warnings == (
        REFUSED.format("channel/peek"),
        f"{others.address} has no peek, its messages are not shown",
    )


async def test_a_dead_nsqd_is_an_error() -> None:
    with pytest.raises(UpstreamsFailedError):
        await bodies(DEAD)


async def test_nonsense_for_base64_is_an_error() -> None:
    answers = {"/channel/peek": {"messages": [{"id": "x", "body_base64": "*"}]}}
    with RecordingDaemon("nsqd", answers, []) as nsqd, pytest.raises(UpstreamsFailedError, match="is not base64"):
        await bodies(nsqd.address)
