"""Mistakes in a consumer's config."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.client.consumer_config import ConsumerConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_in_flight": -1},
        {"concurrency": -1},
        {"max_attempts": -1},
        {"max_requeue_delay_s": 3601},
        {"backoff_unit_s": -0.1},
        {"lookupd_poll_interval_s": 0},
        {"lookupd_poll_jitter": 1.1},
        {"drain_timeout_s": -1},
        {"handler_timeout_s": -1},
        {"handlers_in": "fibers"},
        {"dead_letter_topic": "a b"},
    ],
)
def test_a_config_with_a_mistake_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ConsumerConfig(**wrong)


def test_zero_has_a_meaning_where_it_is_documented() -> None:
    config = ConsumerConfig(
        handler_timeout_s=0, max_in_flight=0, concurrency=0, max_attempts=0, max_backoff_s=0, drain_timeout_s=0
    )
    assert config.max_in_flight == 0
