"""How fast a client finishes its messages, and when that is slow enough for a rest."""

from __future__ import annotations

import pytest

from emberq.nsqd.connection import REST_NS
from emberq.nsqd.subscription import EASY_RESTS, FinishPace

HELD = 400
EASY_PACE = HELD // EASY_RESTS
"""How many messages a client may finish during a rest."""


def judge(pace: FinishPace, *, rests: float, finished: int) -> bool:
    return pace.is_easy(now_ns=int(rests * REST_NS), finished=finished, held=HELD)


@pytest.mark.parametrize("finished_per_rest", [1, EASY_PACE])
def test_a_client_with_enough_to_do_is_at_ease_once_per_rest(finished_per_rest: int) -> None:
    pace = FinishPace()
    for number in range(1, 10):
        assert judge(pace, rests=number, finished=number * finished_per_rest)
        assert not judge(pace, rests=number + 0.9, finished=number * finished_per_rest + 1)


def test_a_client_that_might_run_dry_is_not_left_alone() -> None:
    pace = FinishPace()
    assert judge(pace, rests=100, finished=1)
    for number in range(101, 110):
        assert not judge(pace, rests=number, finished=(number - 100) * (EASY_PACE + 2))


def test_a_client_that_has_become_slow_is_at_ease_again() -> None:
    pace = FinishPace()
    judge(pace, rests=1, finished=1)
    assert not judge(pace, rests=2, finished=10 * EASY_PACE)
    assert judge(pace, rests=3, finished=10 * EASY_PACE + 1)
