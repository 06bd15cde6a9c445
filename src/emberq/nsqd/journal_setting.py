"""From nsqd's options to the settings of journaled topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from emberq.base.kinds import Words
from emberq.base.settings import OptionsError
from emberq.broker.journal_store import JournalSettings, SyncMode
from emberq.storage.journal.config import JournalConfig

if TYPE_CHECKING:
    from emberq.nsqd.options import Options

SYNC_MODE = Words("mode", {mode.value: mode for mode in SyncMode})


def journal_settings(options: Options) -> JournalSettings:
    """OptionsError for a pattern that is none."""
    patterns = [_compiled(pattern) for pattern in options.journal_topic]

    def is_wanted(topic: str) -> bool:
        return options.journal or any(pattern.search(topic) for pattern in patterns)

    return JournalSettings(
        is_wanted=is_wanted,
        sync=options.journal_sync,
        sync_interval_ns=options.sync_timeout_ns,
        config=JournalConfig(
            segment_bytes=options.journal_segment_bytes,
            retention_bytes=options.journal_retention_bytes or None,
            retention_ns=options.journal_retention_time_ns or None,
            fsync=options.journal_sync is not SyncMode.NEVER,
        ),
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise OptionsError(f"--journal-topic {pattern!r} is not a regular expression: {error}") from error
