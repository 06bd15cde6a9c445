"""Fixtures for the crash simulator."""

from __future__ import annotations

from tests.support.syncs import no_sync_is_expected

__all__ = ["no_sync_is_expected"]
