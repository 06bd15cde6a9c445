"""Values that were measured, and what is made of several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """One value of one run. `measure` names it within its work."""

    measure: str
    value: float
    unit: str
    better: Better


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above (nearest rank)."""
    ranked = sorted(values)
    rank = math.ceil(len(ranked) * percent / 100)
    return ranked[max(rank, 1) - 1]


def advantage(ours: float, peer: float, better: Better) -> float | None:
    """How many times better ours is, so that above 1 is always good; None where there is no better."""
    if better == "neither" or min(ours, peer) <= 0:
        return None
    return ours / peer if better == "higher" else peer / ours
