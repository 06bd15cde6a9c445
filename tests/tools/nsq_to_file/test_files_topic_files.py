"""Which messages end up in which file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.tools.nsq_to_file.files import OutputError, TopicFiles
from emberq.tools.nsq_to_file.options import FileNameFormat, ToFileOptions

HOUR_NS = 3600 * NS_PER_SECOND
NOON_NS = 1_700_395_200 * NS_PER_SECOND  # 2023-11-19 12:00:00 UTC


class Rig:
    """Files of the topic `t` in a folder of the test's own, at noon."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.output = folder / "out"
        self.work = folder / "work"
        self.clock = ManualClock(wall_ns=NOON_NS)
        self.options = ToFileOptions(**({"output_dir": str(self.output)} | options))
        names = FileNameFormat(
            self.options.template, datetime_format=self.options.datetime_format, topic="t", host="h", pid=1
        )
        self.files = TopicFiles(names, self.options, clock=self.clock, label="[t/c]")

    def append(self, *bodies: bytes, sync: bool = False) -> bool:
        return self.files.append(bodies, sync=sync)

    def content(self) -> dict[str, bytes]:
        return content_of(self.output)


def content_of(folder: Path) -> dict[str, bytes]:
    """Name and content of every file, decompressed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def test_each_body_is_a_line(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.append(b"one", b"", b"three\nand a half", b"\xff\x00")
    assert rig.content() == {"t.h.2023-11-19_12.log": b"one\n\nthree\nand a half\n\xff\x00\n"}


def test_a_file_that_exists_is_continued(tmp_path: Path) -> None:
    for body in (b"before", b"after"):
        rig = Rig(tmp_path)
        rig.append(body)
        rig.files.close()
    assert rig.content() == {"t.h.2023-11-19_12.log": b"before\nafter\n"}


def test_messages_are_safe_when_a_sync_was_asked_for_or_a_file_has_ended(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert not rig.append(b"one")
    assert rig.append(b"two", sync=True)
    assert not rig.append(b"three")
    rig.clock.advance(seconds=3600)
    assert rig.append(b"four")


def test_the_next_hour_has_the_next_file(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.append(b"noon")
    rig.clock.advance(seconds=3599)
    rig.append(b"still noon")
    rig.clock.advance(seconds=1)
    rig.append(b"one")
    assert rig.content() == {
        "t.h.2023-11-19_12.log": b"noon\nstill noon\n",
        "t.h.2023-11-19_13.log": b"one\n",
    }


def test_a_file_ends_behind_the_message_that_makes_it_too_large(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotate_size=20)
    rig.append(*[b"123456789"] * 5)
    assert rig.content() == {
        "t.h-000000.2023-11-19_12.log": b"123456789\n" * 3,
        "t.h-000001.2023-11-19_12.log": b"123456789\n" * 2,
    }


def test_size_is_counted_over_batches_and_restarts(tmp_path: Path) -> None:
    for _ in range(5):
        rig = Rig(tmp_path, rotate_size=20)
        rig.append(b"123456789")
        rig.files.close()
    assert list(map(len, rig.content().values())) == [30, 20]


def test_a_message_larger_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotate_size=5)
    rig.append(b"x" * 100, b"y" * 100)
    assert list(map(len, rig.content().values())) == [101, 101]


def test_size_is_that_before_compression(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotate_size=5000, gzip=True)
    rig.append(*[b"x" * 3000] * 5)
    rig.files.close()
    assert list(map(len, rig.content().values())) == [6002, 6002, 3001]


def test_a_file_ends_when_it_was_open_for_longer_than_the_interval(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotate_interval_ns=60 * NS_PER_SECOND)
    rig.append(b"a")
    rig.clock.advance(seconds=60)
    rig.append(b"b")
    rig.clock.advance(ms=1)
    rig.append(b"c")
    assert rig.content() == {
        "t.h-000000.2023-11-19_12.log": b"a\nb\n",
        "t.h-000001.2023-11-19_12.log": b"c\n",
    }


def test_a_clock_that_is_set_back_does_not_touch_the_interval(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotate_interval_ns=60 * NS_PER_SECOND, datetime_format="x")
    rig.append(b"a")
    rig.clock.set_wall(NOON_NS - HOUR_NS)
    rig.append(b"b")
    assert list(rig.content().values()) == [b"a\nb\n"]


@pytest.mark.parametrize("flags", [{"gzip": True}, {"rotate_interval_ns": HOUR_NS}])
def test_a_file_of_an_earlier_run_is_not_touched(tmp_path: Path, flags: dict[str, Any]) -> None:
    for body in (b"first run", b"second run"):
        rig = Rig(tmp_path, **flags)
        rig.append(body)
        rig.files.close()
    assert list(rig.content().values()) == [b"first run\n", b"second run\n"]
    assert [name.partition(".2023")[0] for name in rig.content()] == ["t.h-000000", "t.h-000001"]


def test_a_new_name_begins_with_revision_0(tmp_path: Path) -> None:
    rig = Rig(tmp_path, rotate_size=1)
    rig.append(b"a", b"b")
    rig.clock.advance(seconds=3600)
    rig.append(b"c")
    assert list(rig.content()) == [
        "t.h-000000.2023-11-19_12.log",
        "t.h-000000.2023-11-19_13.log",
        "t.h-000001.2023-11-19_12.log",
    ]


def test_the_name_of_a_file_that_was_taken_away_is_not_used_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gzip=True)
    rig.append(b"a")
    rig.files.reopen()
    (rig.output / "t.h-000000.2023-11-19_12.log.gz").unlink()
    rig.append(b"b")
    rig.files.reopen()
    rig.files.close()
    assert list(rig.content()) == ["t.h-000001.2023-11-19_12.log.gz", "t.h-000002.2023-11-19_12.log.gz"]


# Ticks and signals.


def test_a_tick_opens_a_file_even_for_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.files.tick()
    assert rig.content() == {"t.h.2023-11-19_12.log": b""}
    rig.clock.advance(seconds=3600)
    rig.files.tick()
    assert list(rig.content()) == ["t.h.2023-11-19_12.log", "t.h.2023-11-19_13.log"]


def test_a_tick_opens_nothing_if_empty_files_are_not_wanted(tmp_path: Path) -> None:
    rig = Rig(tmp_path, skip_empty_files=True)
    rig.files.tick()
    rig.files.reopen()
    assert rig.content() == {}
    rig.append(b"a")
    rig.clock.advance(seconds=3600)
    rig.files.tick()
    rig.files.reopen()
    assert rig.content() == {"t.h.2023-11-19_12.log": b"a\n"}


def test_reopening_goes_on_after_somebody_moved_the_file_away(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.append(b"before")
    path = rig.output / "t.h.2023-11-19_12.log"
    path.rename(rig.output / "away")
    rig.append(b"also before")
    rig.files.reopen()
    rig.append(b"after")
    assert rig.content() == {"away": b"before\nalso before\n", "t.h.2023-11-19_12.log": b"after\n"}


def test_reopening_a_gzip_file_begins_the_next_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gzip=True)
    rig.append(b"before")
    rig.files.reopen()
    rig.append(b"after")
    rig.files.close()
    assert list(rig.content().values()) == [b"before\n", b"after\n"]


# A work dir.


def with_work_dir(tmp_path: Path, **options: Any) -> Rig:
    return Rig(tmp_path, work_dir=str(tmp_path / "work"), **options)


def test_a_file_appears_in_the_output_dir_when_it_is_complete(tmp_path: Path) -> None:
    rig = with_work_dir(tmp_path)
    rig.append(b"a", sync=True)
    name = "t.h-000000.2023-11-19_12.log"
    assert (content_of(rig.work), rig.content()) == ({name: b"a\n"}, {})
    rig.clock.advance(seconds=3600)
    rig.files.tick()
    assert rig.content() == {name: b"a\n"}
    assert list(content_of(rig.work)) == ["t.h-000000.2023-11-19_13.log"]


def test_a_file_in_the_output_dir_is_never_replaced(tmp_path: Path) -> None:
    for body in (b"a", b"b"):
        rig = with_work_dir(tmp_path)
        rig.append(body)
        rig.files.close()
    assert rig.content() == {"t.h-000000.2023-11-19_12.log": b"a\n", "t.h-000001.2023-11-19_12.log": b"b\n"}
    assert content_of(rig.work) == {}


def test_a_file_that_appeared_in_the_output_dir_meanwhile_is_not_replaced_either(tmp_path: Path) -> None:
    rig = with_work_dir(tmp_path)
    rig.append(b"ours")
    rig.output.mkdir(exist_ok=True)
    (rig.output / "t.h-000000.2023-11-19_12.log").write_bytes(b"theirs\n")
    rig.files.close()
    assert list(rig.content().values()) == [b"theirs\n", b"ours\n"]


def test_reopening_hands_over_the_file_and_goes_on(tmp_path: Path) -> None:
    rig = with_work_dir(tmp_path)
    rig.append(b"a")
    rig.files.reopen()
    rig.append(b"b")
    rig.files.close()
    assert list(rig.content().values()) == [b"a\n", b"b\n"]


def test_what_a_crash_left_in_the_work_dir_is_continued(tmp_path: Path) -> None:
    with_work_dir(tmp_path).append(b"before", sync=True)
    rig = with_work_dir(tmp_path)
    rig.append(b"after")
    rig.files.close()
    assert rig.content() == {"t.h-000000.2023-11-19_12.log": b"before\nafter\n"}


def test_a_gzip_file_that_a_crash_left_in_the_work_dir_stays_as_it_is(tmp_path: Path) -> None:
    with_work_dir(tmp_path, gzip=True).append(b"before", sync=True)
    rig = with_work_dir(tmp_path, gzip=True)
    rig.append(b"after")
    rig.files.close()
    assert content_of(rig.work) == {"t.h-000000.2023-11-19_12.log.gz": b"before\n"}
    assert rig.content() == {"t.h-000001.2023-11-19_12.log.gz": b"after\n"}


def test_names_may_hold_folders(tmp_path: Path) -> None:
    rig = with_work_dir(tmp_path, filename_format="<TOPIC>/<DATETIME>/part<REV>", datetime_format="%Y/%m/%d")
    rig.append(b"a")
    rig.files.close()
    assert rig.content() == {"t/2023/11/19/part-000000": b"a\n"}


# Failures.


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    rig = Rig(tmp_path, output_dir="/dev", filename_format="full")
    with pytest.raises(OutputError, match=r"^/dev/full: No space left on device$"):
        rig.append(b"x", sync=True)


@pytest.mark.parametrize("flags", [{}, {"gzip": True}])
def test_a_folder_that_cannot_be_made_is_told_by_name(tmp_path: Path, flags: dict[str, Any]) -> None:
    (tmp_path / "out").write_bytes(b"a file, not a folder")
    with pytest.raises(OutputError, match=r"/out: Not a directory$"):
        Rig(tmp_path, **flags).files.tick()
