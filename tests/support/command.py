"""Commands of the system that some tests need, and that a machine may not have."""

from __future__ import annotations

import shutil

import pytest


def require_command(name: str) -> None:
    """Skip the test, with the remedy, where there is no such command. Its package is named like it."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {name})")
