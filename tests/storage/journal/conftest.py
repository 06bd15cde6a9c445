"""Fixtures for the tests of the journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.journal.rig import JournalRig, OtherThread
from tests.support.syncs import no_sync_is_expected

__all__ = ["journals", "no_sync_is_expected", "other_thread"]


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[JournalRig]:
    """A place for a journal that does not exist yet."""
    made = JournalRig(tmp_path / "topic")
    yield made
    made.close()


@pytest.fixture
def other_thread() -> OtherThread:
    return OtherThread()
