"""The side file of due times."""

from __future__ import annotations

import logging
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emberq.storage import disk_queue_files
from emberq.storage.error import StorageError

ONE, TWO = b"0123456789abcdef", b"0123456789abcdee"
message_ids = st.binary(min_size=16, max_size=16)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "t:c.diskqueue.due.dat"
    disk_queue_files.save_due_times(path, {ONE: 1_700_000_000_000_000_000, TWO: 0})
    assert disk_queue_files.load_due_times(path) == {ONE: 1_700_000_000_000_000_000, TWO: 0}


def test_the_file_is_text_with_a_checksum_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "due"
    disk_queue_files.save_due_times(path, {ONE: 5}, kind="delay")
    checked = b"30313233343536373839616263646566 5"
    assert path.read_bytes() == b"emberq-due 1 delay\n%s %08x\n" % (checked, zlib.crc32(checked))


def test_nothing_to_remember_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "due"
    disk_queue_files.save_due_times(path, {ONE: 5})
    disk_queue_files.save_due_times(path, {})
    assert list(tmp_path.iterdir()) == []
    disk_queue_files.save_due_times(path, {})
    assert disk_queue_files.load_due_times(path) == {}


def test_delays_are_not_taken_for_moments(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "due"
    disk_queue_files.save_due_times(path, {ONE: 5}, kind="delay")
    assert disk_queue_files.load_due_times(path, kind="delay") == {ONE: 5}
    assert disk_queue_files.load_due_times(path) == {}
    assert "not a file of kind 'due'" in caplog.text


def test_a_damaged_line_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "due"
    disk_queue_files.save_due_times(path, {ONE: 5, TWO: 6})
    path.write_bytes(path.read_bytes().replace(b" 5 ", b" 7 "))
    assert disk_queue_files.load_due_times(path) == {TWO: 6}
    assert caplog.records[0].levelno == logging.WARNING
    assert "1 of 2 due times" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\n", b"something else\n", b"\xff" * 100])
def test_a_file_that_is_something_else_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "due"
    path.write_bytes(content)
    assert disk_queue_files.load_due_times(path) == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_file_that_cannot_be_read_is_ignored_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert disk_queue_files.load_due_times(tmp_path) == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_saving_where_one_cannot_write_says_why(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file or directory"):
        disk_queue_files.save_due_times(tmp_path / "missing" / "due", {ONE: 5})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(
    st.dictionaries(message_ids, st.integers(0, 1 << 62), min_size=1, max_size=5),
    st.integers(0, 1 << 16),
    st.integers(0, 255),
)
def test_a_changed_byte_never_invents_a_due_time(
    tmp_path: Path, due_ns_by_id: dict[bytes, int], place: int, value: int
) -> None:
    path = tmp_path / "due"
    disk_queue_files.save_due_times(path, due_ns_by_id)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    assert disk_queue_files.load_due_times(path).items() <= due_ns_by_id.items()
