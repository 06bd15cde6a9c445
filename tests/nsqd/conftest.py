"""Fixtures of nsqd's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A broker without sockets."""
    with Rig() as rig:
        yield rig
