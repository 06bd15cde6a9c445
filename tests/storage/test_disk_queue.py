"""The disk queue: order, files, rolling, syncing, failing writes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from emberq.storage.backend import Records
from emberq.storage.error import DiskWriteError, StorageError
from tests.storage.rig import MANY, Rig, batch, drain, numbered, on_disk, payloads_of, take


def test_records_come_out_in_the_order_they_went_in(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(b"a", b"bb"))
    queue.put(batch(b"ccc"))
    assert queue.depth == 3
    assert drain(queue) == [b"a", b"bb", b"ccc"]
    assert queue.depth == 0


def test_an_empty_batch_leaves_no_trace(rig: Rig) -> None:
    rig.queue().put(Records(b"", []))
    assert rig.names() == set()


def test_taking_from_an_empty_queue_gives_nothing(rig: Rig) -> None:
    assert rig.queue().take(max_count=10, max_bytes=MANY) is None


def test_a_peek_leaves_the_records_where_they_are(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(b"a", b"b", b"c"))
    assert payloads_of(queue.peek(max_count=2)) == [b"a", b"b"]
    assert queue.depth == 3
    assert drain(queue) == [b"a", b"b", b"c"]
    assert queue.peek(max_count=2) is None


def test_take_respects_both_limits_but_gives_at_least_one(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(*numbered(10)))
    assert len(payloads_of(queue.take(max_count=3, max_bytes=MANY))) == 3
    assert len(payloads_of(queue.take(max_count=MANY, max_bytes=30))) == 2
    assert len(payloads_of(queue.take(max_count=MANY, max_bytes=1))) == 1
    assert queue.depth == 4


def test_files_are_byte_for_byte_those_of_nsq(rig: Rig) -> None:
    queue = rig.queue("t:c", max_bytes_per_file=100)
    first, second = [b"a" * 26, b"b" * 30], [b"c" * 50]
    queue.put(batch(*first, *second))
    queue.close()
    assert rig.data(0, name="t:c").read_bytes() == on_disk(*first)
    assert rig.data(1, name="t:c").read_bytes() == on_disk(*second)
    assert (rig.folder / "t:c.diskqueue.meta.dat").read_bytes() == b"3\n0,0\n1,54\n"
    assert len(rig.names()) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in rig.folder.iterdir()} == {0o600}


@pytest.mark.conformance(130)
def test_closing_an_unused_queue_writes_only_its_meta_file(rig: Rig) -> None:
    rig.queue().close()
    assert rig.names() == {"q.diskqueue.meta.dat"}
    assert rig.meta.read_bytes() == b"0\n0,0\n0,0\n"


@pytest.mark.conformance(133)
def test_the_eleventh_record_of_14_bytes_rolls_a_file_of_140(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    payloads = numbered(11)
    for count, payload in enumerate(payloads, 1):
        queue.put(batch(payload))
        assert queue.depth == count
    queue.sync()
    assert rig.meta.read_bytes() == b"11\n0,0\n1,14\n"
    assert [take(queue) for _ in payloads] == [[payload] for payload in payloads]
    assert queue.depth == 0


def test_a_batch_rolls_where_single_records_would(rig: Rig) -> None:
    payloads = [b"x" * (1 + number % 9) for number in range(100)]
    whole, single = rig.queue("whole", max_bytes_per_file=64), rig.queue("single", max_bytes_per_file=64)
    whole.put(batch(*payloads))
    for payload in payloads:
        single.put(batch(payload))
    for number in range(20):
        ours, theirs = (rig.data(number, name=name) for name in ("whole", "single"))
        assert ours.exists() == theirs.exists()
        assert not ours.exists() or ours.read_bytes() == theirs.read_bytes()
    assert drain(whole) == payloads


def test_a_record_larger_than_a_file_has_a_file_of_its_own(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=50)
    payloads = [b"a", b"b" * 200, b"c"]
    queue.put(batch(*payloads))
    assert [rig.data(number).stat().st_size for number in range(3)] == [5, 204, 5]
    assert drain(queue) == payloads


def test_a_file_read_to_its_end_is_deleted(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    queue.put(batch(*numbered(25)))
    take(queue, count=9)
    assert rig.data(0).exists()
    take(queue)
    assert not rig.data(0).exists()
    assert rig.meta.read_bytes() == b"15\n1,0\n2,70\n"


def test_a_file_that_was_drained_before_the_writer_rolled_is_deleted_not_set_aside(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    queue.put(batch(*numbered(10)))
    assert len(drain(queue)) == 10
    queue.put(batch(b"0123456789"))
    assert rig.names() == {"q.diskqueue.meta.dat", "q.diskqueue.000001.dat"}
    assert drain(queue) == [b"0123456789"]


@pytest.mark.conformance(134)
def test_an_emptied_queue_leaves_no_files_and_can_be_used_again(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    queue.put(batch(*numbered(100)))
    take(queue, count=3)
    queue.empty()
    assert rig.names() == set()
    assert queue.depth == 0
    queue.put(batch(*numbered(100)))
    assert drain(queue) == numbered(100)


def test_an_emptied_queue_stays_empty_across_a_restart(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(b"a"))
    queue.empty()
    queue.close()
    assert rig.queue().depth == 0


def test_a_deleted_queue_leaves_no_files(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    queue.put(batch(*numbered(100)))
    take(queue, count=30)
    queue.delete()
    rig.advance(ms=10_000)
    assert rig.names() == set()


def test_a_closed_queue_refuses_and_gives_nothing(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(b"a"))
    queue.close()
    with pytest.raises(DiskWriteError, match="exiting"):
        queue.put(batch(b"b"))
    assert queue.take(max_count=1, max_bytes=MANY) is None
    assert queue.peek(max_count=1) is None
    for again in (queue.close, queue.delete, queue.empty, queue.sync):
        again()
    assert drain(rig.queue()) == [b"a"]


def test_a_reopened_queue_goes_on_where_it_stopped(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    queue.put(batch(*numbered(25)))
    take(queue, count=12)
    queue.close()
    queue = rig.queue(max_bytes_per_file=140)
    assert queue.depth == 13
    queue.put(batch(*numbered(3, first=25)))
    assert drain(queue) == numbered(16, first=12)


@pytest.mark.conformance(142)
def test_old_files_are_read_completely_when_the_file_limit_changed(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=1000)
    queue.put(batch(*numbered(100)))
    queue.close()
    queue = rig.queue(max_bytes_per_file=70)
    queue.put(batch(*numbered(20, first=100)))
    assert drain(queue) == numbered(120)


def test_the_repr_shows_where_the_queue_stands(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(b"abc"))
    assert repr(queue) == "<DiskQueue 'q' depth=1 read=0,0 write=0,7>"


# -- when it syncs ---------------------------------------------------------------------------------------------


@pytest.mark.conformance(139)
def test_the_sync_timeout_brings_the_meta_file_up_to_date(rig: Rig) -> None:
    queue = rig.queue(sync_timeout_ms=50)
    queue.put(batch(b"x" * 1000))
    rig.advance(ms=50)
    assert rig.meta.read_bytes() == b"1\n0,0\n0,1004\n"
    queue.put(batch(b"y" * 1000))
    take(queue)
    rig.advance(ms=50)
    assert rig.meta.read_bytes() == b"1\n0,1004\n0,2008\n"


def test_the_first_record_makes_a_meta_file_at_once_without_an_fsync(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fsyncs: list[int] = []
    queue = rig.queue()
    with monkeypatch.context() as counted:
        counted.setattr(os, "fsync", fsyncs.append)
        queue.put(batch(b"abc"))
        queue.put(batch(b"def"))
    assert fsyncs == []
    assert rig.meta.read_bytes() == b"0\n0,0\n0,0\n"
    rig.advance(ms=2000)
    assert rig.meta.read_bytes() == b"2\n0,0\n0,14\n"


def test_reads_and_writes_count_towards_the_next_sync(rig: Rig) -> None:
    queue = rig.queue(sync_every=4)
    queue.put(batch(b"abc"))
    queue.put(batch(b"abc", b"abc"))
    assert rig.meta.read_bytes() == b"0\n0,0\n0,0\n"
    take(queue)
    assert rig.meta.read_bytes() == b"2\n0,7\n0,21\n"
    take(queue)
    assert rig.meta.read_bytes() == b"2\n0,7\n0,21\n"


def test_sync_every_zero_syncs_every_operation(rig: Rig) -> None:
    queue = rig.queue(sync_every=0)
    queue.put(batch(b"abc"))
    queue.put(batch(b"abc"))
    assert rig.meta.read_bytes() == b"2\n0,0\n0,14\n"
    take(queue)
    assert rig.meta.read_bytes() == b"1\n0,7\n0,14\n"


def test_a_negative_sync_every_leaves_it_to_the_timeout(rig: Rig) -> None:
    queue = rig.queue(sync_every=-1)
    queue.put(batch(b"abc"))
    queue.put(batch(*numbered(10_000)))
    assert rig.meta.read_bytes() == b"0\n0,0\n0,0\n"
    rig.advance(ms=2000)
    assert rig.meta.read_bytes() == b"10001\n0,0\n0,140007\n"


def test_rolling_syncs_with_the_new_file_named(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    queue.put(batch(*numbered(10)))
    queue.put(batch(*numbered(2)))
    assert rig.meta.read_bytes() == b"10\n0,0\n1,0\n"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_quiet_queue_holds_no_files_open_and_rings_no_alarm(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(b"a", b"b"))
    queue.put(batch(b"c"))
    take(queue)
    assert rig.open_files() <= 2
    rig.advance(ms=2000)
    rig.advance(ms=2000)
    assert rig.open_files() == 0
    written = rig.meta.stat().st_mtime_ns
    rig.advance(ms=60_000)
    assert rig.meta.stat().st_mtime_ns == written
    assert drain(queue) == [b"b", b"c"]


# -- writes that fail --------------------------------------------------------------------------------------------


@pytest.fixture
def disk_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many more bytes the disk takes before it is full."""
    pwrite, left = os.pwrite, [1 << 40]

    def limited(fd: int, data: bytes | memoryview, position: int) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = pwrite(fd, bytes(data[: left[0]]), position)
        left[0] -= written
        return written

    def set_left(size_bytes: int) -> None:
        left[0] = size_bytes

    monkeypatch.setattr(os, "pwrite", limited)
    return set_left


@pytest.mark.parametrize("payloads", [numbered(25), [b"x" * (5 + number) for number in range(10)]])
@pytest.mark.parametrize("room", [0, 3, 14, 70, 100])
def test_a_full_disk_keeps_the_whole_records_and_tells_how_many(
    rig: Rig, disk_of: Callable[[int], None], payloads: list[bytes], room: int
) -> None:
    queue = rig.queue(max_bytes_per_file=10_000, sync_every=-1)
    queue.put(batch(b"before"))
    disk_of(room)
    with pytest.raises(DiskWriteError) as failure:
        queue.put(batch(*payloads))
    stored = failure.value.stored_count
    assert str(failure.value) == f"write {rig.data(0)}: no space left on device"
    assert len(on_disk(*payloads[:stored])) <= room < len(on_disk(*payloads[: stored + 1]))
    assert queue.depth == 1 + stored
    assert rig.data(0).read_bytes() == on_disk(b"before", *payloads[:stored])
    disk_of(1 << 40)
    queue.put(batch(b"after"))
    assert drain(queue) == [b"before", *payloads[:stored], b"after"]
    queue.close()


def test_a_disk_that_fills_up_after_a_roll_counts_the_records_of_all_files(
    rig: Rig, disk_of: Callable[[int], None]
) -> None:
    queue = rig.queue(max_bytes_per_file=140, sync_every=-1)
    queue.close()
    queue = rig.queue(max_bytes_per_file=1400, sync_every=-1)
    meta_bytes = len(b"100\n0,0\n1,0\n")  # the roll writes a meta file to the same disk
    disk_of(1400 + meta_bytes + 30)
    with pytest.raises(DiskWriteError) as failure:
        queue.put(batch(*numbered(110)))
    assert failure.value.stored_count == 102
    disk_of(1 << 40)
    assert drain(queue) == numbered(102)


def test_a_file_that_cannot_be_opened_fails_the_put(rig: Rig) -> None:
    queue = rig.queue()
    rig.data(0).mkdir()
    with pytest.raises(DiskWriteError) as failure:
        queue.put(batch(b"a"))
    assert str(failure.value) == f"open {rig.data(0)}: is a directory"
    assert failure.value.stored_count == 0
    rig.data(0).rmdir()
    queue.put(batch(b"b"))
    assert drain(queue) == [b"b"]


def test_a_record_outside_the_limits_is_refused_with_the_batch(rig: Rig) -> None:
    queue = rig.queue(min_record_bytes=3, max_record_bytes=5)
    for payload in (b"xx", b"x" * 6):
        with pytest.raises(DiskWriteError) as failure:
            queue.put(batch(b"good", payload))
        assert str(failure.value) == f"invalid message write size ({len(payload)}) minMsgSize=3 maxMsgSize=5"
        assert failure.value.stored_count == 0
    assert queue.depth == 0


def test_a_batch_that_contradicts_itself_is_a_mistake_of_the_caller(rig: Rig) -> None:
    with pytest.raises(ValueError, match="does not end"):
        rig.queue().put(Records(on_disk(b"abc") + b"rest", [7]))


def test_a_meta_file_that_cannot_be_looked_at_stops_the_start(rig: Rig) -> None:
    rig.meta.mkdir()
    with pytest.raises(StorageError, match=f"open {rig.meta}: is a directory"):
        rig.queue()
