"""Where a disk queue goes on after a restart.

The meta file is the answer after a clean stop. After a crash it may be older than the data files, because records
were written, and perhaps new files begun, after the last sync. The recorded places are then still record
boundaries, so

- writing starts a new file behind all others, and leaves what may be a torn record alone;
- what lies beyond the recorded write place is counted, added to the depth, and will be read like the rest.

A meta file that makes no sense is no reason to lose data: everything there waits again, from the oldest file on.
Without a meta file, however, the queue is empty, whatever data files lie there: somebody wanted it so.
"""

from __future__ import annotations

from emberq.storage import position as meta_file
from emberq.storage.errors import DamagedPositionError
from emberq.storage.limits import DiskLimits
from emberq.storage.naming import QueueFiles, QueueLog
from emberq.storage.position import Position
from emberq.storage.segment import count_records


def recover(files: QueueFiles, *, limits: DiskLimits, log: QueueLog) -> Position | None:
    """Where the queue stands; None if it is new. OSError if its files cannot even be looked at."""
    try:
        position = meta_file.load(files.meta)
    except DamagedPositionError as error:
        return _from_data_files(files, reason=str(error), limits=limits, log=log)
    if position is None:
        return None
    return _with_unrecorded_data(files, position, limits=limits, log=log)


def clear_the_way(files: QueueFiles, *, first: int, log: QueueLog) -> None:
    """Set aside the data files of an earlier life from number `first` on, before the writer comes to them.

    So the file after the one that is written to never exists; if it does after a crash, it is newer than the meta
    file.
    """
    number = first
    while files.data(number).exists():
        log.warning("saving data file without metadata as %s", files.bad(number))
        files.data(number).rename(files.bad(number))
        number += 1


def count_waiting(files: QueueFiles, position: Position, *, limits: DiskLimits) -> int:
    """How many whole records can be read from the read place to the write place."""
    total = 0
    for number in files.existing(first=position.read_file, last=position.write_file):
        total += count_records(
            files.data(number),
            start=position.read_pos if number == position.read_file else 0,
            end=position.write_pos if number == position.write_file else None,
            limits=limits,
        )
    return total


def _from_data_files(files: QueueFiles, *, reason: str, limits: DiskLimits, log: QueueLog) -> Position:
    """The position at which everything waits that is there."""
    log.error("%s, reading all data files again", reason)
    numbers = files.all_existing()
    if not numbers:
        return Position()
    position = Position(read_file=numbers[0], write_file=numbers[-1] + 1)
    return position._replace(depth=count_waiting(files, position, limits=limits))


def _with_unrecorded_data(files: QueueFiles, position: Position, *, limits: DiskLimits, log: QueueLog) -> Position:
    """The position, moved behind what was written since it was recorded."""
    path = files.data(position.write_file)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        size = 0
    newest = position.write_file
    while files.data(newest + 1).exists():
        newest += 1
    if size > position.write_pos:
        log.warning("%s metadata writePos %d < file size of %d, skipping to new file", path, position.write_pos, size)
    elif newest > position.write_file:
        log.warning("%s is newer than the metadata, skipping to new file", files.data(newest))
    else:
        return position
    unrecorded = Position(
        read_file=position.write_file, read_pos=position.write_pos, write_file=newest + 1, write_pos=0
    )
    return position._replace(
        depth=position.depth + count_waiting(files, unrecorded, limits=limits),
        write_file=newest + 1,
        write_pos=0,
    )
