"""Servers to be tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.http.harness")

from tests.http.harness import HttpHarness  # noqa: E402
from tests.support.raw_http_client import RawClient  # noqa: E402

StartServer = Callable[..., HttpHarness]


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts a server with the given limits, guard and so on."""
    with ExitStack() as running:

        def start(**arguments: Any) -> HttpHarness:
            return running.enter_context(HttpHarness(**arguments))

        yield start


@pytest.fixture
def server(start_server: StartServer) -> HttpHarness:
    """A server with the default limits."""
    return start_server()


@pytest.fixture
def client(server: HttpHarness) -> RawClient:
    """A connection to it."""
    return server.connect()
