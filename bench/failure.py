"""Why a run does not count.

    LoadFailure            the run gave no valid number; its text says what was seen
    +-- ServerRefused      nsqd sent an error frame
    +-- Miscounted         more, fewer or other messages than expected

A failed run is reported and makes the whole benchmark exit 1; its work is left out of the table, because
a number next to lost messages would be read as a result.
"""

from __future__ import annotations


class LoadFailure(Exception):
    """The run gave no valid number."""


class ServerRefused(LoadFailure):
    """nsqd answered with an error frame."""


class Miscounted(LoadFailure):
    """What arrived is not what was published."""
