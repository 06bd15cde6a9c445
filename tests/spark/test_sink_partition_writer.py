"""Cutting rows into MPUBs and naming them, and sending them to a server that drops connections."""

from __future__ import annotations

import pyarrow as pa
import pytest

from emberq.spark.error import NsqdRefusedError, RowError
from emberq.spark.option import SinkSettings
from emberq.spark.sink import MpubPublisher, PartitionWriter, WriteIdentity
from emberq.wire import envelope
from tests.spark.scripted_http import ScriptedHttp
from tests.support.threaded_http import Received, Reply

IDENTITY = WriteIdentity(query="q", batch_id=5, partition_id=1)


def rows(*bodies: bytes | None, **columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), **columns})


def written(
    server: ScriptedHttp,
    *batches: pa.RecordBatch,
    topic: str | None = "t",
    max_body_bytes: int = 1000,
    identity: WriteIdentity = IDENTITY,
) -> None:
    publisher = MpubPublisher(server.address, SinkSettings.of({"nsqd": server.address, "retryTimeout": "20s"}).access)
    writer = PartitionWriter(publisher, identity, topic=topic, max_body_bytes=max_body_bytes)
    for batch in batches:
        writer.add(batch)
    writer.finish()
    publisher.close()


def published(request: Received) -> list[bytes]:
    """The messages of an MPUB."""
    count, at = int.from_bytes(request.body[:4], "big"), 4
    messages = []
    while at < len(request.body):
        end = at + 4 + int.from_bytes(request.body[at : at + 4], "big")
        messages.append(request.body[at + 4 : end])
        at = end
    assert len(messages) == count
    return messages


def name(request: Received) -> tuple[str, str]:
    return request.headers["X-Emberq-Producer"], request.headers["X-Emberq-Sequence"]


def names(server: ScriptedHttp) -> list[tuple[str, str]]:
    return [name(request) for request in server.received]


def test_rows_with_headers_are_published_in_envelopes() -> None:
    headers = pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string()))
    with ScriptedHttp(Reply(b"OK")) as server:
        written(server, rows(b"a", b"b", b"", headers=headers))
        (request,) = server.received
    assert published(request) == [envelope.encode({"k": "v"}, b"a"), b"b", envelope.encode({}, b"")]
    with ScriptedHttp(Reply(b"OK")) as server, pytest.raises(RowError, match="null or empty"):
        written(server, rows(b"a", None, headers=headers[:2]))


def test_what_fits_is_one_publish_however_it_arrives() -> None:
    with ScriptedHttp(Reply(b"OK")) as server:
        written(server, rows(b"a", b"b"), rows(b"c"), rows())
        (request,) = server.received
    assert request.target == "/mpub?topic=t&binary=true"
    assert published(request) == [b"a", b"b", b"c"]


def test_more_is_cut_at_the_size() -> None:
    bodies = [b"%04d" % number for number in range(100)]
    with ScriptedHttp(Reply(b"OK")) as server:
        written(server, rows(*bodies[:33]), rows(*bodies[33:]), max_body_bytes=100)
        assert max(len(request.body) for request in server.received) == 4 + 12 * 8
        assert sorted(body for request in server.received for body in published(request)) == bodies
        assert len(server.received) == 9
        assert len(set(names(server))) == 9


def test_a_body_larger_than_the_size_goes_alone() -> None:
    with ScriptedHttp(Reply(b"OK")) as server:
        written(server, rows(b"a", b"x" * 200, b"b"), max_body_bytes=100)
        assert sorted(published(request) for request in server.received) == [[b"a"], [b"b"], [b"x" * 200]]


def test_the_same_rows_get_the_same_name_in_another_order_and_no_others_do() -> None:
    with ScriptedHttp(Reply(b"OK")) as server:
        written(server, rows(b"a", b"b"))
        written(server, rows(b"b"), rows(b"a"))
        written(server, rows(b"a", b"c"))
        written(server, rows(b"a", b"b"), identity=WriteIdentity(query="q", batch_id=5, partition_id=2))
        written(server, rows(b"a", b"b"), identity=WriteIdentity(query="p", batch_id=5, partition_id=1))
        first, reordered, other_rows, other_partition, other_query = names(server)
    assert first == reordered
    assert len({first, other_rows, other_partition, other_query}) == 4
    assert first[1] == "5"


def test_equal_publishes_of_one_task_are_told_apart_the_same_way_each_time() -> None:
    with ScriptedHttp(Reply(b"OK")) as server:
        written(server, rows(*[b"tick"] * 6), max_body_bytes=4 + 2 * 8)
        first = set(names(server))
        assert len(first) == 3
        server.received.clear()
        written(server, rows(*[b"tick"] * 6), max_body_bytes=4 + 2 * 8)
        assert set(names(server)) == first


def test_rows_are_sorted_by_their_topics() -> None:
    with ScriptedHttp(Reply(b"OK")) as server:
        written(server, rows(b"1", b"2", b"3", topic=["x", "y", "x"]), rows(b"4", topic=["y"]), topic=None)
        sent = {request.target: published(request) for request in server.received}
    assert sent == {"/mpub?topic=x&binary=true": [b"1", b"3"], "/mpub?topic=y&binary=true": [b"2", b"4"]}


def test_a_lost_answer_makes_the_publish_go_out_again_under_its_name() -> None:
    with ScriptedHttp(Reply(drop=True), Reply({"message": "EXITING"}, status=503), Reply(b"OK")) as server:
        written(server, rows(b"a"))
        assert len(server.received) == 3
        assert len({(name(request), request.body) for request in server.received}) == 1


def test_a_refusal_is_not_repeated() -> None:
    with ScriptedHttp(Reply({"message": "BODY_TOO_BIG"}, status=413)) as server:
        with pytest.raises(NsqdRefusedError, match='set option "maxBodyBytes"'):
            written(server, rows(b"a"))
        assert len(server.received) == 1


@pytest.mark.parametrize("body", [None, b""])
def test_a_row_without_a_body_is_refused_before_anything_of_its_batch_is_sent(body: bytes | None) -> None:
    with ScriptedHttp(Reply(b"OK")) as server:
        with pytest.raises(RowError, match=r"length\(body\) > 0"):
            written(server, rows(b"a", body))
        assert server.received == []
