"""Writes a topic to a file of lines, in batches: each is finished only when it is safe on the disk.

    python archive_batches.py TOPIC FILE [NSQD_ADDRESS]

Ends when nothing has come for two seconds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from emberq import ConsumerConfig
from emberq.sync import Consumer

CONFIG = ConsumerConfig(max_in_flight=2000)


def archive(topic: str, path: Path, address: str) -> int:
    """How many messages were written."""
    count = 0
    with path.open("ab") as file, Consumer(topic, "archive", nsqd_addresses=[address], config=CONFIG) as consumer:
        for batch in consumer.batches(max_size=1000, max_wait_s=0.2, idle_timeout_s=2.0):
            file.writelines(body + b"\n" for body in batch.bodies)
            file.flush()
            os.fsync(file.fileno())
            batch.finish()
            count += len(batch)
    return count


if __name__ == "__main__":
    topic_name, file_name, *rest = sys.argv[1:]
    print(archive(topic_name, Path(file_name), rest[0] if rest else "127.0.0.1:4150"), "messages")
