"""Commands are tested without the contexts and variables of the developer who runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("EMBERQ_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EMBERQ_CONTEXTS", str(tmp_path / "none.toml"))
