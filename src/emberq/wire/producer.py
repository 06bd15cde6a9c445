"""How a producer names itself and numbers its batches, where it does (see `negotiation`, and nsqd's HTTP API).

The id is 16 bytes, written as 32 hexadecimal digits; all zeros stand for nobody. The number is 0 to 2**63 - 1, written
in digits alone. A wrong one is refused and never bent into a right one: a batch with the number of another would be
taken for stored, and be lost.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PRODUCER_ID_BYTES = 16
MAX_SEQUENCE = (1 << 63) - 1

_PRODUCER_ID = re.compile("[0-9a-fA-F]{32}")
_SEQUENCE = re.compile(rb"[0-9]{1,19}")
_NOBODY = bytes(PRODUCER_ID_BYTES)


class ProducerSequence(NamedTuple):
    """A batch as its producer names it."""

    producer_id: bytes
    sequence: int


NO_PRODUCER = ProducerSequence(_NOBODY, 0)


def parse_producer_id(text: str) -> bytes | None:
    """The id that these digits spell; None if they spell none."""
    producer_id = bytes.fromhex(text) if _PRODUCER_ID.fullmatch(text) else _NOBODY
    return None if producer_id == _NOBODY else producer_id


def parse_sequence(raw: bytes) -> int | None:
    """The number that these digits spell; None if they spell none, or one too large."""
    sequence = int(raw) if _SEQUENCE.fullmatch(raw) else -1
    return sequence if 0 <= sequence <= MAX_SEQUENCE else None
