"""The receiver of channel mode without Spark, in a process of its own, to be killed: that takes no time to start.

    python -m tests.chaos.spark_receiving '{"folder": ..., "options": {...}}'

In place of Spark, each segment of the spool becomes a file of bodies, which may be written again but not changed, and
is committed. With "is_last" it ends when the channel is empty.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from emberq.spark.channel_source import ChannelStreamReader
from emberq.spark.option import SourceSettings, Use

PAUSE_S = 0.1


def main() -> None:
    task = json.loads(sys.argv[1])
    options, rows = task["options"], Path(task["folder"]) / "rows"
    rows.mkdir(exist_ok=True)
    reader = ChannelStreamReader(SourceSettings.of(options, Use.STREAM))
    end = reader.initialOffset()
    if task["is_last"]:
        reader.prepareForTriggerAvailableNow()
    while True:
        start, end = end, reader.latestOffset(end, ReadAllAvailable())
        if start == end and task["is_last"]:
            break
        write_rows(reader, start, end, rows)
        reader.commit(end)
        time.sleep(PAUSE_S)
    reader.stop()


def write_rows(reader: ChannelStreamReader, start: dict[str, Any], end: dict[str, Any], folder: Path) -> None:
    """A file for each segment: its bodies, a line each."""
    for number in range(start["next"], end["next"]):
        one = {**start, "next": number}, {**start, "next": number + 1}
        partitions = reader.partitions(*one)
        bodies = [body for each in partitions for batch in reader.read(each) for body in batch["body"].to_pylist()]
        path = folder / f"{number}.new"
        path.write_bytes(b"\n".join(bodies))
        path.rename(folder / f"{number}.txt")


if __name__ == "__main__":
    main()
