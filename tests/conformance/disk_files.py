"""The files of a data folder, read and written without emberq's code.

    <name>.diskqueue.<NNNNNN>.dat    records back to back: | int32 size | int64 timestamp ns | uint16 attempts |
                                                           | 16 bytes id | body (size - 26 bytes) |
    <name>.diskqueue.meta.dat        three lines: depth, read file number and position, write file number and position

A queue's name is its topic, or `topic:channel`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.raw_client import Message, parse_message


def data_file(data_path: Path, queue: str, number: int) -> Path:
    """The path of a queue's data file."""
    return data_path / f"{queue}.diskqueue.{number:06d}.dat"


def meta_file(data_path: Path, queue: str) -> Path:
    """The path of a queue's position file."""
    return data_path / f"{queue}.diskqueue.meta.dat"


def read_records(path: Path) -> list[Message]:
    """All records of a data file."""
    data = path.read_bytes()
    records: list[Message] = []
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        records.append(parse_message(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return records


def record(number: int, body: bytes) -> bytes:
    """One record; `number` makes its id."""
    payload = struct.pack(">qH16s", 1_600_000_000_000_000_000 + number, 0, b"%016x" % number) + body
    return struct.pack(">i", len(payload)) + payload


def write_queue(data_path: Path, queue: str, files: Sequence[Sequence[bytes]], *, meta: str) -> None:
    """Lay down a queue: the bodies of each file in turn, and the position file as given."""
    number = 0
    for file_number, bodies in enumerate(files):
        with data_file(data_path, queue, file_number).open("wb") as file:
            for body in bodies:
                file.write(record(number, body))
                number += 1
    meta_file(data_path, queue).write_text(meta)


def write_metadata(data_path: Path, topics: Sequence[dict[str, Any]]) -> None:
    """Lay down nsqd.dat."""
    (data_path / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))


def read_metadata(data_path: Path) -> dict[str, dict[str, bool]]:
    """What nsqd.dat says of the channels: topic -> channel -> paused."""
    saved = json.loads((data_path / "nsqd.dat").read_bytes())
    return {
        topic["name"]: {channel["name"]: channel["paused"] for channel in topic["channels"] or []}
        for topic in saved["topics"] or []
    }
