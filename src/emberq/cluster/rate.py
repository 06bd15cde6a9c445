"""Messages per second, from two looks at the cluster.

nsqd only counts. A rate is the difference of two counts by the time between them, and it is taken node by node before
it is added up: an nsqd that has joined, left or restarted in between, whose counts began anew, then does not make a
leap in the sum; it simply is not in it until the next look.

    came   messages published to a topic, or that came to a channel
    left   messages that a topic handed on, or that a channel is done with: finished, or thrown away
"""

from __future__ import annotations

from array import array
from itertools import repeat
from operator import sub
from typing import NamedTuple

from emberq.cluster.node_figures import Column, Key, NodeFigures


class Rates(NamedTuple):
    """Per second."""

    came: float
    left: float


class Growth:
    """How the counts of one nsqd have grown between two looks, in columns beside its figures. Immutable."""

    def __init__(self, *, came: Column, left: Column, is_known: bytes) -> None:
        self.came = came
        self.left = left
        self.is_known = is_known
        """A byte for each key; 0 for what was not there at both looks, or began anew. It has grown by 0."""


def growth(now: NodeFigures, before: NodeFigures | None) -> Growth:
    """How `now` differs from what the same nsqd said before."""
    if before is None:
        return _unknown(len(now.keys))
    if now.keys is before.keys:  # nearly always, and then whole columns can be compared
        came = array("q", map(sub, now.columns["message_count"], before.columns["message_count"]))
        if not came or min(came) >= 0:
            # Counts of one channel are not read in one instant, so the difference may be a message too few.
            left = array("q", map(max, map(sub, now.settled, before.settled), repeat(0)))
            return Growth(came=came, left=left, is_known=b"\1" * len(came))
    return _growth_row_by_row(now, before)


def _unknown(count: int) -> Growth:
    nothing = array("q", bytes(8 * count))
    return Growth(came=nothing, left=nothing, is_known=bytes(count))


def _growth_row_by_row(now: NodeFigures, before: NodeFigures) -> Growth:
    counts = zip(before.columns["message_count"], before.settled, strict=True)
    then: dict[Key, tuple[int, int]] = dict(zip(before.keys, counts, strict=True))
    came, left, is_known = array("q"), array("q"), bytearray()
    for key, came_now, left_now in zip(now.keys, now.columns["message_count"], now.settled, strict=True):
        came_then, left_then = then.get(key, (came_now + 1, 0))
        has_grown = came_now >= came_then  # else it is new, or began anew
        came.append(came_now - came_then if has_grown else 0)
        left.append(max(left_now - left_then, 0) if has_grown else 0)
        is_known.append(has_grown)
    return Growth(came=came, left=left, is_known=bytes(is_known))
