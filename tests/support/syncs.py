"""Syncs of other tests, of which none is expected here."""

from __future__ import annotations

import pytest

from emberq.base import file


@pytest.fixture(autouse=True)
def no_sync_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little time has passed since the last one, and whatever other tests have not let end."""
    monkeypatch.setattr(file, "QUIET_S", 0.0)
    monkeypatch.setattr(file.SYNCS, "_count", 0)
