"""What a disk queue makes of the files of a crash, of damage, and of the reference."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.storage.rig import Rig, batch, drain, numbered, on_disk, take, write_folder


def crash(rig: Rig, folder: Path) -> Rig:
    """The folder as a killed process leaves it."""
    shutil.copytree(rig.folder, folder)
    return Rig(folder)


# -- folders written by hand from the format's description --------------------------------------------------------


def test_a_folder_with_several_files_half_read_opens(rig: Rig) -> None:
    first, second, third = [b"a" * 26, b"b" * 30], [b"c" * 40, b"d" * 27], [b"e" * 26]
    write_folder(
        rig.folder,
        meta="4\n3,30\n5,30\n",
        files=[on_disk(*first), on_disk(*second), on_disk(*third)],
        first=3,
    )
    queue = rig.queue(min_record_bytes=26)
    assert queue.depth == 4
    assert drain(queue) == [first[1], *second, *third]
    queue.put(batch(b"f" * 26))
    queue.close()
    assert rig.names() == {"q.diskqueue.000005.dat", "q.diskqueue.meta.dat"}
    assert rig.data(5).read_bytes() == on_disk(*third, b"f" * 26)
    assert rig.meta.read_bytes() == b"1\n5,30\n5,60\n"


def test_a_drained_folder_opens_and_is_appended_to(rig: Rig) -> None:
    write_folder(rig.folder, meta="0\n0,7\n0,7\n", files=[on_disk(b"abc")])
    queue = rig.queue()
    assert queue.depth == 0
    queue.put(batch(b"def"))
    assert drain(queue) == [b"def"]


def test_a_missing_write_file_keeps_the_positions(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(rig.folder, meta="0\n4,500\n4,500\n", files=[])
    queue = rig.queue()
    assert caplog.text == ""
    queue.close()
    assert rig.meta.read_bytes() == b"0\n4,500\n4,500\n"


def test_a_missing_write_file_does_not_keep_new_records_from_being_read(rig: Rig) -> None:
    write_folder(rig.folder, meta="0\n4,500\n4,500\n", files=[])
    queue = rig.queue()
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]
    assert not any(name.endswith(".bad") for name in rig.names())


def test_data_files_without_a_meta_file_are_ignored_but_kept(rig: Rig) -> None:
    old = [on_disk(*numbered(5)), on_disk(*numbered(4))]
    write_folder(rig.folder, meta=None, files=old)
    write_folder(rig.folder, meta=None, files=[old[0]], first=3)
    queue = rig.queue(max_bytes_per_file=28)
    assert queue.depth == 0
    assert not rig.data(0).exists()
    assert not rig.data(1).exists()  # set aside before the writer comes to it: after a crash it would look newer
    new = numbered(7, first=50)
    queue.put(batch(*new))
    assert [rig.data(number).read_bytes() for number in range(4)] == [
        on_disk(*new[start : start + 2]) for start in range(0, 8, 2)
    ]
    assert [rig.bad(number).read_bytes() for number in (0, 1, 3)] == [*old, old[0]]
    queue.close()
    assert drain(rig.queue()) == new


# -- crashes ---------------------------------------------------------------------------------------------------


def test_what_was_written_before_the_first_sync_is_still_delivered(
    rig: Rig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    queue = rig.queue(max_bytes_per_file=140, sync_every=-1)
    queue.put(batch(*numbered(7)))
    queue = crash(rig, tmp_path_factory.mktemp("crash") / "data").queue()
    assert queue.depth == 7
    assert drain(queue) == numbered(7)


@pytest.mark.conformance(140)
def test_what_was_written_after_the_last_sync_is_still_delivered(
    rig: Rig, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rig.queue(sync_every=-1)
    queue.put(batch(*numbered(2)))
    queue.sync()
    queue.put(batch(*numbered(3, first=2)))
    after = crash(rig, tmp_path_factory.mktemp("crash") / "data")
    queue = after.queue()
    assert "metadata writePos 28 < file size of 70, skipping to new file" in caplog.text
    assert queue.depth == 5
    queue.put(batch(b"new"))
    assert after.data(1).read_bytes() == on_disk(b"new")
    assert drain(queue) == [*numbered(5), b"new"]
    assert queue.depth == 0


@pytest.mark.conformance(141)
def test_a_crash_and_a_truncated_file_cost_only_the_truncated_record(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    payloads = numbered(20, size=100)
    files = [on_disk(*payloads[start : start + 3]) for start in range(0, 20, 3)]
    files[2] = files[2][:-20]
    write_folder(rig.folder, meta="18\n0,0\n6,0\n", files=files)
    queue = rig.queue(max_bytes_per_file=320)
    assert drain(queue) == payloads[:8] + payloads[9:]
    assert queue.depth == 0
    assert rig.bad(2).read_bytes() == files[2]
    assert f"jump to next file and saving bad file as {rig.bad(2)}" in caplog.text
    queue.put(batch(b"new"))
    assert rig.data(7).read_bytes() == on_disk(b"new")


def test_files_begun_after_the_last_sync_are_found_too(rig: Rig) -> None:
    payloads = numbered(9)
    files = [on_disk(*payloads[start : start + 3]) for start in range(0, 9, 3)]
    write_folder(rig.folder, meta="3\n0,0\n0,42\n", files=files)
    queue = rig.queue(max_bytes_per_file=42)
    assert queue.depth == 9
    queue.put(batch(b"new"))
    assert drain(queue) == [*payloads, b"new"]
    assert rig.names() == {"q.diskqueue.000003.dat", "q.diskqueue.meta.dat"}


@pytest.mark.parametrize("file_count", [2, 3, 4])
def test_the_next_file_is_the_one_behind_those_that_were_found(rig: Rig, file_count: int) -> None:
    payloads = numbered(file_count)
    write_folder(rig.folder, meta="1\n0,0\n0,14\n", files=[on_disk(payload) for payload in payloads])
    queue = rig.queue()
    queue.put(batch(b"new"))
    assert rig.data(file_count).read_bytes() == on_disk(b"new")
    assert drain(queue) == [*payloads, b"new"]


def test_what_came_after_the_last_sync_is_added_to_what_was_counted_before_it(rig: Rig) -> None:
    write_folder(rig.folder, meta="3\n0,0\n0,42\n", files=[on_disk(*numbered(4))])
    assert rig.queue().depth == 4


def test_a_drained_queue_that_crashed_finds_what_came_afterwards(rig: Rig) -> None:
    write_folder(rig.folder, meta="0\n0,14\n0,14\n", files=[on_disk(*numbered(4))])
    queue = rig.queue()
    assert queue.depth == 3
    assert drain(queue) == numbered(3, first=1)


def test_a_torn_record_at_the_end_is_left_out(rig: Rig) -> None:
    content = on_disk(*numbered(4))[:-3]
    write_folder(rig.folder, meta="1\n0,0\n0,14\n", files=[content])
    queue = rig.queue()
    assert queue.depth == 3
    assert drain(queue) == numbered(3)
    assert queue.depth == 0
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]
    assert rig.bad(0).read_bytes() == content


def test_only_a_torn_record_is_nothing_to_wait_for(rig: Rig) -> None:
    write_folder(rig.folder, meta="0\n0,14\n0,14\n", files=[on_disk(*numbered(2))[:-3]])
    queue = rig.queue()
    assert queue.depth == 0
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]


# -- damage ----------------------------------------------------------------------------------------------------


@pytest.mark.conformance(135)
def test_a_truncated_file_in_the_middle_costs_only_what_was_cut_off(rig: Rig) -> None:
    payloads = numbered(25, size=120)
    queue = rig.queue(max_bytes_per_file=1000)
    queue.put(batch(*payloads))
    os.truncate(rig.data(1), 400)
    assert take(queue, count=19) == payloads[:11] + payloads[16:24]
    assert rig.bad(1).stat().st_size == 400
    assert drain(queue) == payloads[24:]
    assert queue.depth == 0


@pytest.mark.conformance(136)
def test_a_put_after_the_current_file_was_truncated_goes_to_a_new_file(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(b"x" * 120))
    os.truncate(rig.data(0), 100)
    queue.put(batch(b"new"))
    assert rig.data(1).read_bytes() == on_disk(b"new")
    assert take(queue) == [b"new"]
    assert queue.depth == 0


@pytest.mark.conformance(137)
def test_a_length_of_zero_in_the_current_file_sets_it_aside(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    queue = rig.queue(min_record_bytes=10)
    queue.put(batch(*numbered(3)))
    with rig.data(0).open("r+b") as file:
        file.seek(14)
        file.write(b"\0\0\0\0")
    assert drain(queue) == numbered(1)
    assert rig.bad(0).exists()
    assert f"reading at 14 of {rig.data(0)} - invalid message read size (0)" in caplog.text
    assert "positive depth at tail (2), data loss, resetting 0..." in caplog.text
    queue.put(batch(*numbered(2, first=7)))
    assert rig.data(1).exists()
    assert drain(queue) == numbered(2, first=7)


@pytest.mark.conformance(138)
def test_a_truncated_last_file_ends_with_depth_zero(rig: Rig) -> None:
    queue = rig.queue()
    queue.put(batch(*numbered(2)))
    os.truncate(rig.data(0), 10)
    assert take(queue) == []
    assert queue.depth == 0
    assert rig.bad(0).exists()


def test_a_depth_below_what_is_there_is_corrected_before_the_end(rig: Rig) -> None:
    write_folder(rig.folder, meta="2\n0,0\n0,70\n", files=[on_disk(*numbered(5))])
    queue = rig.queue()
    assert take(queue, count=2) == numbered(2)
    assert queue.depth == 3
    assert drain(queue) == numbered(3, first=2)


def test_a_negative_depth_is_counted_anew(rig: Rig) -> None:
    write_folder(rig.folder, meta="-7\n0,14\n0,70\n", files=[on_disk(*numbered(5))])
    assert rig.queue().depth == 4


def test_a_negative_depth_at_the_tail_is_reset(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(rig.folder, meta="-7\n0,70\n0,70\n", files=[on_disk(*numbered(5))])
    assert rig.queue().depth == 0
    assert "negative depth at tail (-7), metadata corruption, resetting 0..." in caplog.text


@pytest.mark.parametrize("meta", ["3\n0,70\n0,14\n", "3\n2,0\n0,14\n"])
def test_a_reader_past_the_writer_starts_a_new_file(rig: Rig, meta: str) -> None:
    write_folder(rig.folder, meta=meta, files=[on_disk(*numbered(1))])
    queue = rig.queue()
    assert queue.depth == 0
    assert rig.names() == {"q.diskqueue.meta.dat"}
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]


def test_a_damaged_meta_file_loses_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(rig.folder, meta="6\n2,0\n", files=[on_disk(*numbered(3)), on_disk(*numbered(3, first=3))], first=2)
    queue = rig.queue()
    assert "does not have the three lines of a meta file" in caplog.text
    assert queue.depth == 6
    queue.put(batch(b"new"))
    assert drain(queue) == [*numbered(6), b"new"]


def test_a_damaged_meta_file_alone_is_an_empty_queue(rig: Rig) -> None:
    write_folder(rig.folder, meta="", files=[])
    queue = rig.queue()
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]


def test_a_missing_file_in_the_middle_is_skipped(rig: Rig) -> None:
    queue = rig.queue(max_bytes_per_file=28)
    queue.put(batch(*numbered(10)))
    rig.data(1).unlink()
    rig.data(2).unlink()
    assert drain(queue) == numbered(2) + numbered(4, first=6)


def test_a_meta_file_that_names_a_million_missing_files_does_not_take_a_million_steps(rig: Rig) -> None:
    write_folder(rig.folder, meta="5\n0,0\n1000000000000,0\n", files=[on_disk(*numbered(2))])
    queue = rig.queue()
    assert drain(queue) == numbered(2)
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]


def test_a_lack_of_descriptors_is_not_taken_for_damage(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = rig.queue()
    queue.put(batch(*numbered(2)))

    def no_more_files(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_more_files)
        assert take(queue) == []
    assert queue.depth == 2
    assert drain(queue) == numbered(2)
