"""Leaving out messages that are in the spool already. `channel_spool` says when nsqd brings some again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from emberq.spark.channel_frames import Arrived, Origin, attempts, keys, times_ns
from emberq.spark.channel_segment import Messages
from emberq.spark.channel_spool import Spool


def without_stored(arrived: Sequence[Arrived], spool: Spool) -> list[Messages]:
    """The messages that are not in the spool yet, each once."""
    if not any(_has_suspects(each) for each in arrived):
        return [Messages(each.origin, each.frames) for each in arrived]
    suspicions = [_may_be_stored(each) for each in arrived]
    taken: defaultdict[Origin, set[bytes]] = defaultdict(set)
    for each, suspicion in zip(arrived, suspicions, strict=True):
        taken[each.origin].update(keys(each.frames.filter(pc.invert(suspicion))).to_pylist())
    fresh: list[Messages] = []
    for each, suspicion in zip(arrived, suspicions, strict=True):
        is_fresh = _are_fresh(each, suspicion, spool, taken[each.origin])
        frames = each.frames.filter(pa.array(is_fresh, pa.bool_()))
        if len(frames):
            fresh.append(Messages(each.origin, frames))
    return fresh


def _has_suspects(arrived: Arrived) -> bool:
    """Whether any of the messages has to be looked up. Nearly always none has, which takes no time to find out."""
    first_ns = pc.min_max(times_ns(arrived.frames))["min"].as_py()
    tries = pc.min_max(attempts(arrived.frames))
    return bool(first_ns <= arrived.in_doubt_until_ns or tries["min"].as_py() != 1 or tries["max"].as_py() != 1)


def _may_be_stored(arrived: Arrived) -> pa.BooleanArray:
    """Which of the messages have to be looked up."""
    is_in_doubt = pc.less_equal(times_ns(arrived.frames), arrived.in_doubt_until_ns)
    return pc.or_(is_in_doubt, pc.not_equal(attempts(arrived.frames), 1))


def _are_fresh(arrived: Arrived, suspicion: pa.BooleanArray, spool: Spool, taken: set[bytes]) -> list[bool]:
    """For each message whether to store it. `taken` are those that will be stored anyway, and becomes more."""
    suspects = arrived.frames.filter(suspicion)
    if not len(suspects):
        return [True] * len(arrived.frames)
    times = pc.min_max(times_ns(suspects))
    known = spool.known_keys(
        keys(suspects), origin=arrived.origin, first_ns=times["min"].as_py(), last_ns=times["max"].as_py()
    )
    fresh: list[bool] = []
    for key, is_suspect in zip(keys(arrived.frames).to_pylist(), suspicion.to_pylist(), strict=True):
        is_stored = is_suspect and (key in known or key in taken)
        fresh.append(not is_stored)
        taken.add(key)
    return fresh
