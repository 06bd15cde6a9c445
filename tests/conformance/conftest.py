"""Every conformance test runs twice: nsqd must not care whether it is reached over TCP or a unix socket (row 17)."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["tcp", "unix"])
def transport(request: pytest.FixtureRequest) -> str:
    """What nsqd listens on."""
    kind: str = request.param
    return kind
