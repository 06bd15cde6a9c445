"""Fixtures of nsqadmin's tests: a real cluster, and a real nsqadmin that looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from emberq.embedded import EmbeddedThread
from tests.support.admin_rig import AdminThread, of_cluster

StartAdmin = Callable[..., AdminThread]


@pytest.fixture
def cluster() -> Iterator[EmbeddedThread]:
    """Two nsqds that journal nothing, and an nsqlookupd."""
    with EmbeddedThread(nsqd_count=2) as nsq:
        yield nsq


@pytest.fixture
def start_admin(cluster: EmbeddedThread) -> Iterator[StartAdmin]:
    """Starts an nsqadmin of the cluster with the given options."""
    with ExitStack() as running:

        def start(**options: Any) -> AdminThread:
            return running.enter_context(of_cluster(cluster, **options))

        yield start


@pytest.fixture
def admin(start_admin: StartAdmin) -> AdminThread:
    """An nsqadmin with default options, but for its history."""
    return start_admin()
