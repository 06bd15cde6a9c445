"""Fixtures for the tests of the storage layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """An empty data folder, and queues that sync in the caller's thread."""
    made = Rig(tmp_path)
    yield made
    made.close()
