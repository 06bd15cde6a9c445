from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.spark.error import RowError
from emberq.spark.schema import byte_strings, constant, in_envelopes, integers, opened
from emberq.wire import envelope

EVERY_WAY_OF_A_ROW = """
import pathlib, sys, tempfile

import pyarrow as pa

import emberq.spark.source
from emberq.spark.channel_frames import Arrived, finish_commands, rows
from emberq.spark.channel_spool import Spool, without_stored
from emberq.spark.journal_columns import decode, record_batches
from emberq.spark.schema import byte_strings, in_envelopes, integers, opened
from emberq.spark.sink import PartitionWriter, WriteIdentity
from emberq.wire import envelope
from emberq.wire.journal_batch import Bodies, encode
from tests.spark.message_frames import HERE, array, frame


class Publisher:
    count = 0

    def publish(self, request):
        self.count += 1

    def flush(self):
        pass


frames = array(frame(1), frame(2, attempts=2))
assert rows(frames, HERE).num_rows == 2
assert finish_commands(frames).count(b"FIN ") == 2
with tempfile.TemporaryDirectory() as folder:
    fresh = without_stored([Arrived(HERE, frames, 1, print)], Spool(pathlib.Path(folder)))
assert sum(len(each.frames) for each in fresh) == 2

for times_ns in (None, [5, 6]):
    batch = encode(Bodies.of([b"a", b"b"]), base_offset=0, timestamp_ns=5, seed=0, times_ns=times_ns)
    decoded = decode(b"".join(batch.parts), seed=0).batches
    assert sum(made.num_rows for made in record_batches(decoded, nsqd="n", topic="t")) == 2

headers, bodies = opened(byte_strings([envelope.encode({"k": "v"}, b"a"), b"b"]))
sealed = in_envelopes(pa.RecordBatch.from_arrays([bodies, headers], names=["body", "headers"]))
assert opened(sealed.column("body"))[1].equals(byte_strings([b"a", b"b"]))

publisher = Publisher()
writer = PartitionWriter(
    publisher, WriteIdentity(query="q", batch_id=0, partition_id=0), topic=None, max_body_bytes=1000
)
topics, delays_ms = byte_strings([b"t", b"u", b"u"]).view(pa.string()), integers([0, 0, 5], pa.int32())
bodies = byte_strings([b"a", b"b", b"c"])
for _ in range(2):  # the second time, each message is there twice
    writer.add(pa.RecordBatch.from_arrays([bodies, topics, delays_ms], names=["body", "topic", "defer_ms"]))
    writer.finish()
assert publisher.count == 6

assert "pandas" not in sys.modules, "it was imported"
"""
"""What Spark's Python processes do with messages."""


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers_are_those_that_arrow_makes(values: list[int]) -> None:
    assert integers(values, pa.int64()).equals(pa.array(values, pa.int64()))
    assert constant(values[0], pa.int64()).equals(pa.scalar(values[0], pa.int64()))


@pytest.mark.parametrize("kind", [pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16()], ids=str)
def test_there_are_numbers_of_every_size(kind: pa.DataType) -> None:
    assert integers([0, 1, 127], kind).equals(pa.array([0, 1, 127], kind))


@given(st.lists(st.binary(), min_size=1))
def test_bytes_are_those_that_arrow_makes(values: list[bytes]) -> None:
    assert byte_strings(values).equals(pa.array(values, pa.binary()))
    assert constant(values[0], pa.binary()).equals(pa.scalar(values[0], pa.binary()))


@given(st.text())
def test_text_is_that_which_arrow_makes(value: str) -> None:
    assert constant(value, pa.string()).equals(pa.scalar(value, pa.string()))


def test_bytes_may_be_cut_elsewhere_than_they_are_given() -> None:
    assert byte_strings([b"ab", b"cde"], [1, 3, 0, 1]).to_pylist() == [b"a", b"bcd", b"", b"e"]


def test_no_row_needs_pandas_which_takes_long_to_import() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_WAY_OF_A_ROW], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


MESSAGES = st.tuples(st.none() | st.dictionaries(st.text(), st.text()), st.binary())
"""Headers, or None if there is no envelope, and the body."""


@given(st.lists(MESSAGES, min_size=1))
def test_what_is_put_into_envelopes_comes_out_of_them(messages: list[tuple[dict[str, str] | None, bytes]]) -> None:
    published = [body if headers is None else envelope.encode(headers, body) for headers, body in messages]
    headers, bodies = opened(byte_strings(published))
    headers.validate(full=True)
    assert [None if each is None else dict(each) for each in headers.to_pylist()] == [each for each, _ in messages]
    assert bodies.to_pylist() == [body for _, body in messages]
    rows = pa.RecordBatch.from_arrays([headers, bodies], names=["headers", "body"])
    assert in_envelopes(rows).to_pydict() == {"body": published}


def test_headers_that_are_no_text_spark_could_store_do_not_end_a_query() -> None:
    document = b'{"k": "\\ud800"}'
    headers, bodies = opened(byte_strings([envelope.MARK + len(document).to_bytes(4) + document + b"x"]))
    assert (headers.to_pylist(), bodies.to_pylist()) == ([[("k", "?")]], [b"x"])
    headers.validate(full=True)


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [([("k", None)], 'header "k" is None'), ([("k", 70_000 * "v")], "must not take more than 65536")],
)
def test_headers_that_no_envelope_can_hold_are_refused(headers: list[tuple[str, str]], complaint: str) -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = pa.RecordBatch.from_arrays([pa.array([headers], kind), byte_strings([b"a"])], names=["headers", "body"])
    with pytest.raises(RowError, match=complaint.replace('"', "['\"]")):
        in_envelopes(rows)
