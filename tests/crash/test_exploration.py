"""A slice of the crash states that `python -m tests.crash` explores, the same on every machine and at every time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.crash.exploration import recorded, try_state

STATES = 8


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Recovery has much to say, a thousand times over."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(1, 26))
def test_every_promise_is_kept_after_every_crash(seed: int) -> None:
    run = recorded(seed)
    for number in range(STATES):
        try_state(run, number)
