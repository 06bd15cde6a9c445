"""What is in a topic, for tests."""

from __future__ import annotations

import json
from typing import Any

from emberq.spark.journal_read import JournalReplay


def bodies_of(nsqd: str, topic: str) -> list[bytes]:
    """Every message of a journaled topic."""
    replay = JournalReplay({"nsqd": nsqd, "topic": topic, "mode": "journal"}, start="earliest", end="latest")
    replay.prepare()
    return [body for portion in replay.bodies() for body in portion]


def documents_of(nsqd: str, topic: str) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [json.loads(body) for body in bodies_of(nsqd, topic)]
