"""Journals on simulated files, after a power cut, a failed sync, or both: what was confirmed stays, what was not is
stored when it is sent again, and no offset ever means two messages."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.storage.error import JournalSyncError, JournalWriteError
from emberq.storage.journal.inspection import Finding, Severity, verify
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.reader import MOVED_ON
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.journal_batch import Bodies
from emberq.wire.parameter import ProducerSequence
from tests.crash.simulated_files import ROOT, Choice, Fault, SimulatedFiles
from tests.storage.journal.rig import producer, read_all

FOLDER = ROOT / "topic.journal"
SEEDS = range(60)
PAGE = 4096


def opened(
    fs: SimulatedFiles, *, segment_bytes: int = 1 << 20, fsync: bool = True, seen_unsynced: bool = False
) -> Journal:
    """The journal on these files."""
    config = JournalConfig(segment_bytes=segment_bytes, fsync=fsync, is_seen_unsynced=seen_unsynced)
    return Journal.open(FOLDER, config, clock=ManualClock(), fs=fs)


def append(journal: Journal, body: bytes, *, by: ProducerSequence | None = None) -> int:
    """Publish one message; return its offset."""
    return journal.append(Bodies.of([body]), timestamp_ns=1, producer=by).base_offset


def large(name: str) -> bytes:
    """A message that has pages of its own."""
    return name.encode().ljust(2 * PAGE, b".")


def stored(journal: Journal) -> list[bytes]:
    """The names of all messages."""
    return [body.rstrip(b".") for body in read_all(journal)[0]]


def last_segment(fs: SimulatedFiles) -> Path:
    return FOLDER / max(name for name in fs.names(FOLDER) if name.endswith(".log"))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_segment_that_was_not_begun_after_all_does_not_come_back(seed: int) -> None:
    """Its header would say that the journal ends before what was stored meanwhile."""
    fs = SimulatedFiles()
    journal = opened(fs, segment_bytes=2 * PAGE)
    append(journal, b"0")
    journal.sync()
    fs.faults.append(Fault("duplicate", errno.EMFILE))
    with pytest.raises(JournalWriteError, match="too many open files"):
        append(journal, large("too large for the segment"))
    append(journal, b"1")
    journal.sync()
    assert stored(opened(fs.power_cut(fs.moment, Choice(seed)))) == [b"0", b"1"]


# -- retries of numbered batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_of_a_pipeline_are_stored_once_when_they_are_sent_again(seed: int) -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    append(journal, b"0", by=producer(b"p", 0))
    journal.sync()
    for number in range(1, 5):
        append(journal, large(str(number)), by=producer(b"p", number))
    left = fs.power_cut(fs.moment, Choice(seed))
    again = opened(left)
    for number in range(1, 5):
        append(again, large(str(number)), by=producer(b"p", number))
    again.sync()
    assert stored(again) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_segment_does_not_vouch_for_the_one_before_it(seed: int) -> None:
    fs = SimulatedFiles()
    journal = opened(fs, segment_bytes=3 * PAGE)
    append(journal, b"0", by=producer(b"p", 0))
    journal.sync()
    append(journal, large("1"), by=producer(b"p", 1))
    append(journal, large("2"), by=producer(b"q", 2))
    assert len(journal.segments) == 2
    left = fs.power_cut(fs.moment, Choice(seed))
    again = opened(left, segment_bytes=3 * PAGE)
    append(again, large("1"), by=producer(b"p", 1))
    append(again, large("2"), by=producer(b"q", 2))
    again.sync()
    assert sorted(stored(again)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_confirmed_after_a_failed_sync_and_a_restart_survives_a_power_cut(seed: int) -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    append(journal, b"0", by=producer(b"p", 0))
    journal.sync()
    append(journal, large("1"), by=producer(b"p", 1))
    fs.faults.append(Fault("sync", suffix=".log"))
    with pytest.raises(JournalSyncError):
        journal.sync()
    next_run = fs.killed(fs.moment, Choice(seed))
    again = opened(next_run)
    append(again, large("1"), by=producer(b"p", 1))
    again.sync()  # now it is confirmed
    after_power_cut = opened(next_run.power_cut(next_run.moment, Choice(seed)))
    assert stored(after_power_cut) == [b"0", b"1"]


def _trimmed_behind_a_silent_producer(fs: SimulatedFiles) -> Journal:
    """A journal from which retention has removed all batches of a producer that is silent since."""
    config = JournalConfig(segment_bytes=3 * PAGE, retention_bytes=1)
    journal = Journal.open(FOLDER, config, clock=ManualClock(), fs=fs)
    append(journal, large("0"), by=producer(b"silent", 0))
    for number in range(1, 4):
        append(journal, large(str(number)), by=producer(b"p", number))
        journal.sync()
    assert journal.trim(before_offset=3, now_ns=1) > 0
    return journal


@pytest.mark.parametrize("seed", range(150))
def test_a_producer_is_known_though_retention_took_its_batches(seed: int) -> None:
    fs = SimulatedFiles()
    _trimmed_behind_a_silent_producer(fs)
    left = fs.power_cut(fs.moment, Choice(seed))
    again = opened(left)
    assert again.append(Bodies.of([large("0")]), timestamp_ns=1, producer=producer(b"silent", 0)).is_repeated


def _roll_and_remove(journal: Journal) -> None:
    """Go on for some segments, and let the oldest go."""
    for _ in range(3):
        append(journal, large("more"))
        journal.sync()
    journal.trim(before_offset=journal.next_offset - 1, now_ns=1)


def _crash_and_recover(journal: Journal) -> None:
    append(journal, large("torn"))


@pytest.mark.parametrize("go_on", [Journal.close, Journal.sync, _roll_and_remove, _crash_and_recover])
@pytest.mark.parametrize("seed", range(30))
def test_a_producer_stays_known_whatever_follows_after_its_batches_were_removed(
    seed: int, go_on: Callable[[Journal], None]
) -> None:
    """An .idx file alone knows it, and is replaced again and again."""
    fs = SimulatedFiles()
    journal = _trimmed_behind_a_silent_producer(fs)
    go_on(journal)
    left = fs.power_cut(fs.moment, Choice(seed))
    opened(left)
    again = opened(left.power_cut(left.moment, Choice(seed + 1)))
    assert again.append(Bodies.of([large("0")]), timestamp_ns=1, producer=producer(b"silent", 0)).is_repeated


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fsync", [True, False], ids=["interval", "never"])
@pytest.mark.parametrize("seed", range(40))
def test_an_offset_that_was_seen_is_not_given_to_another_message(seed: int, fsync: bool) -> None:
    fs = SimulatedFiles()
    journal = opened(fs, fsync=fsync, seen_unsynced=True)
    seen = {append(journal, large(f"seen {number}")): b"seen %d" % number for number in range(4)}
    left = fs.power_cut(fs.moment, Choice(seed))
    again = opened(left, fsync=fsync, seen_unsynced=True)
    kept = len(stored(again))
    assert again.uuid == journal.uuid
    assert append(again, b"new") > max(seen)
    assert stored(again) == [*list(seen.values())[:kept], b"new"]
    (gap,) = read_all(again, offset=kept)[1]
    assert gap[:2] == (kept, again.next_offset - 1)


@pytest.mark.parametrize("fsync", [True, False], ids=["interval", "never"])
def test_a_process_that_dies_skips_no_offsets(fsync: bool) -> None:
    fs = SimulatedFiles()
    journal = opened(fs, fsync=fsync, seen_unsynced=True)
    for number in range(4):
        append(journal, large(str(number)))
    again = opened(fs.killed(fs.moment, Choice(0)), fsync=fsync, seen_unsynced=True)
    assert append(again, b"new") == 4


def test_a_clean_stop_skips_no_offsets() -> None:
    fs = SimulatedFiles()
    journal = opened(fs, fsync=False)
    append(journal, b"0")
    journal.close()
    for seed in range(20):
        again = opened(fs.power_cut(fs.moment, Choice(seed)), fsync=False)
        assert append(again, b"new") == 1


def test_offsets_are_reserved_again_before_they_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberq.storage.journal.journal.RESERVED_COUNT", 3)
    monkeypatch.setattr("emberq.storage.journal.recovery.RESERVED_COUNT", 3)
    fs = SimulatedFiles()
    journal = opened(fs, fsync=False)
    for number in range(20):
        append(journal, large(str(number)))
        left = opened(fs.power_cut(fs.moment, Choice(number)), fsync=False)
        assert left.next_offset > number


# -- damage ------------------------------------------------------------------------------------------------------------


def findings(fs: SimulatedFiles) -> list[Finding]:
    return [found for found in verify(FOLDER, fs=fs) if isinstance(found, Finding)]


def test_a_flipped_bit_in_the_last_confirmed_batch_is_a_loss_and_its_offset_is_not_given_again() -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    for number in range(3):
        append(journal, large(str(number)))
        journal.sync()
    damaged = fs.killed(fs.moment, Choice(0))
    damaged.flip(last_segment(damaged), damaged.file_size(last_segment(damaged)) - 100)
    assert [found.severity for found in findings(damaged)] == [Severity.LOSS]
    again = opened(damaged)
    assert stored(again) == [b"0", b"1"]
    assert append(again, b"new") > 2
    again.close()
    (note,) = findings(damaged)
    assert note.severity is Severity.NOTE
    assert "moved on" in note.text


def test_a_damaged_batch_before_the_synced_point_is_passed_over_though_the_end_is_torn() -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    for number in range(3):
        append(journal, large(str(number)))
        journal.sync()
    append(journal, large("3"))
    size = fs.file_size(last_segment(fs))
    damaged = fs.killed(fs.moment, Choice(0))
    damaged.flip(last_segment(damaged), 64 + 2 * PAGE + 500)
    fd = damaged.open(last_segment(damaged), 2)
    damaged.truncate(fd, size - 100)
    again = opened(damaged)
    assert stored(again) == [b"0", b"2"]
    assert [damage[2:4] for damage in again.report.damage] == [(1, 2)]
    assert append(again, b"new") == 3


def test_what_was_cut_off_does_not_come_back() -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    append(journal, b"0")
    journal.sync()
    append(journal, large("torn"))
    append(journal, large("behind it"))
    torn_at = 64 + 64 + 8 + 8 + 8 + 500
    left = next(
        state
        for state in (fs.power_cut(fs.moment, Choice(seed)) for seed in range(1000))
        if b"behind it" in state.read_file(last_segment(state))
        and b"torn" not in state.read_file(last_segment(state))[:torn_at]
        and state.file_size(last_segment(state)) == fs.file_size(last_segment(fs))
    )
    recovered = opened(left)
    assert stored(recovered) == [b"0"]
    append(recovered, b"new")
    recovered.close()
    for seed in range(400):
        assert stored(opened(left.power_cut(left.moment, Choice(seed)))) == [b"0", b"new"]


@pytest.mark.parametrize("seed", range(40))
def test_a_segment_that_a_dead_process_had_begun_stays(seed: int) -> None:
    fs = SimulatedFiles()
    journal = opened(fs, segment_bytes=3 * PAGE)
    append(journal, large("0"))
    journal.sync()
    append(journal, large("1"))
    assert len(journal.segments) == 2
    next_run = fs.killed(fs.moment, Choice(seed))
    again = opened(next_run, segment_bytes=1 << 20)
    append(again, b"2")
    again.sync()
    assert stored(opened(next_run.power_cut(next_run.moment, Choice(seed)))) == [b"0", b"1", b"2"]


# -- crashes while a journal recovers --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_a_crash_at_any_moment_of_a_recovery_leaves_a_journal_that_recovers_to_the_same(seed: int) -> None:
    fs = SimulatedFiles()
    journal = opened(fs, segment_bytes=6 * PAGE)
    append(journal, b"0")
    journal.sync()
    for number in range(1, 8):
        append(journal, large(str(number)))
    left = fs.power_cut(fs.moment, Choice(seed))
    recovered = opened(left, segment_bytes=6 * PAGE)
    expected = stored(recovered)
    recovered_at = left.moment
    append(recovered, b"new")
    recovered.sync()
    synced_at = left.moment
    append(recovered, large("newer"))
    recovered.close()
    for moment in range(left.moment + 1):
        again = stored(opened(left.power_cut(moment, Choice(seed + moment)), segment_bytes=6 * PAGE))
        assert again[: len(expected)] == expected
        assert again[len(expected) :] in ([], [b"new"], [b"new", b"newer"])
        assert moment > recovered_at or again == expected
        assert moment < synced_at or b"new" in again


@pytest.mark.parametrize("seed", range(10))
def test_a_crash_at_any_moment_of_a_recovery_gives_no_message_the_offset_of_a_damaged_one(seed: int) -> None:
    fs = SimulatedFiles()
    journal = opened(fs)
    for number in range(3):
        append(journal, large(str(number)))
        journal.sync()
    damaged = fs.killed(fs.moment, Choice(0))
    damaged.flip(last_segment(damaged), damaged.file_size(last_segment(damaged)) - PAGE)
    assert stored(opened(damaged)) == [b"0", b"1"]
    for moment in range(damaged.first_moment, damaged.moment + 1):
        assert append(opened(damaged.power_cut(moment, Choice(seed + moment))), b"new") > 2


def rolling(fs: SimulatedFiles) -> Journal:
    """The journal with a segment for each message, none of them synced."""
    return opened(fs, segment_bytes=2 * PAGE, fsync=False)


def rolled(count: int) -> SimulatedFiles:
    """So many segments."""
    fs = SimulatedFiles()
    journal = rolling(fs)
    for number in range(count):
        append(journal, large(str(number)))
    return fs


def after_a_power_cut_in_the_recovery(recovered: SimulatedFiles, *, seed: int) -> Iterator[Journal]:
    """The journal after a cut at any moment since these files were found; none of them tells of a loss."""
    for moment in range(recovered.first_moment, recovered.moment + 1):
        again = recovered.power_cut(moment, Choice(seed + moment))
        journal = rolling(again)
        assert [found for found in findings(again) if found.severity is Severity.LOSS] == []
        assert {gap.reason for gap in read_all(journal)[1]} <= {MOVED_ON}
        yield journal


@pytest.mark.parametrize("seed", range(25))
def test_a_crash_at_any_moment_of_a_recovery_is_not_taken_for_a_loss(seed: int) -> None:
    """Of several segments that are cut off, those that are still there belong to no journal any more."""
    fs = rolled(8)
    left = fs.power_cut(fs.moment, Choice(seed))
    expected = stored(rolling(left))
    for journal in after_a_power_cut_in_the_recovery(left, seed=seed):
        assert stored(journal) == expected


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_in_the_recovery_after_a_kill_is_not_taken_for_a_loss(seed: int) -> None:
    """An index may outlive it, and the segment behind its own, whose name nothing had synced, may not."""
    fs = rolled(4)
    killed = fs.killed(fs.moment, Choice(seed))
    rolling(killed)
    assert list(after_a_power_cut_in_the_recovery(killed, seed=seed))


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_in_the_opening_after_a_kill_in_the_making_leaves_a_journal_that_opens(seed: int) -> None:
    """A segment whose journal.json was lost would be no one's."""
    made = SimulatedFiles()
    opened(made)
    for killed_at in range(made.moment + 1):
        found = made.killed(killed_at, Choice(seed))
        opened(found)
        for cut_at in range(found.first_moment, found.moment + 1):
            for choice in range(10):
                assert stored(opened(found.power_cut(cut_at, Choice(100 * seed + choice)))) == []
