"""Mistakes in a consumer's config."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.client.backoff import BackoffStrategy
from emberq.client.config import ConsumerConfig, HandlersIn


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
        {"drain_timeout_s": float("nan")},
        {"lookupd_timeout_s": float("inf")},
        {"backoff_strategy": "slowly"},
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


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"max_in_flight": "10"}, "max_in_flight is '10'; it must be an int"),
        ({"max_attempts": 2.5}, "max_attempts is 2.5; it must be an int"),
        ({"concurrency": None}, "concurrency is None"),
        ({"max_backoff_s": "1m"}, "max_backoff_s is '1m'; it must be a number"),
        ({"auto_touch": "yes"}, "auto_touch is 'yes'; it must be True or False"),
        ({"dead_letter_topic": b"dead"}, "dead_letter_topic is b'dead'; it must be a str"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        ConsumerConfig(**wrong)


def test_a_word_stands_for_the_member_that_it_names() -> None:
    config = ConsumerConfig(backoff_strategy="full_jitter", handlers_in="processes")  # type: ignore[arg-type]
    assert config.backoff_strategy is BackoffStrategy.FULL_JITTER
    assert config.handlers_in is HandlersIn.PROCESSES


def test_the_secret_for_nsqlookupds_is_not_shown() -> None:
    assert "hush" not in repr(ConsumerConfig(lookupd_secret=b"hush"))
    with pytest.raises(TypeError, match=r"^lookupd_secret is of type str; it must be bytes") as refusal:
        ConsumerConfig(lookupd_secret="hush")  # type: ignore[arg-type]
    assert "hush" not in str(refusal.value)
