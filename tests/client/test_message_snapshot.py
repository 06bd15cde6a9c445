"""What travels to another process."""

from __future__ import annotations

import pickle

from emberq.client.message import MessageSnapshot
from tests.client.test_message import Recorder, message


def test_a_snapshot_knows_what_its_message_knows_and_can_travel() -> None:
    original = message(Recorder("nsqd:4150"), b"hello")
    copy = pickle.loads(pickle.dumps(MessageSnapshot.of(original)))
    for name in ("id", "body", "attempts", "timestamp_ns", "address"):
        assert getattr(copy, name) == getattr(original, name)
