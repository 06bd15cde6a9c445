"""From flags to the settings of journaled topics."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.base.settings import OptionsError
from emberq.broker.store import JournalSettings, SyncMode
from emberq.nsqd.options import NsqdOptions, journal_settings


def settings(**options: Any) -> JournalSettings:
    return journal_settings(NsqdOptions(**options))


def test_no_topic_is_journaled_unless_asked_for() -> None:
    assert not settings().is_wanted("orders")


def test_journal_means_every_topic() -> None:
    assert settings(journal=True).is_wanted("orders")


def test_a_pattern_may_match_any_part_of_a_name() -> None:
    wanted = settings(journal_topic=("^orders", r"\.audit$")).is_wanted
    assert wanted("orders.eu")
    assert wanted("login.audit")
    assert not wanted("old.orders")
    assert not wanted("audit.login")


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(OptionsError, match="--journal-topic '\\(' is not a regular expression"):
        settings(journal_topic=("(",))


@pytest.mark.parametrize("sync", SyncMode)
def test_only_never_leaves_syncing_to_the_operating_system(sync: SyncMode) -> None:
    made = settings(journal_sync=sync)
    assert (made.sync, made.config.fsync) == (sync, sync is not SyncMode.NEVER)


def test_the_interval_is_that_of_the_disk_queues() -> None:
    assert settings(sync_timeout_ns=7 * NS_PER_SECOND).sync_interval_ns == 7 * NS_PER_SECOND


def test_zero_means_no_limit_of_retention() -> None:
    config = settings(journal_retention_bytes=0, journal_retention_time_ns=0).config
    assert (config.retention_bytes, config.retention_ns) == (None, None)
