"""The pytest fixture `nsq`: a real nsqd for tests of producers and consumers.

    def test_my_consumer(nsq):
        producer = connect(nsq.nsqd_tcp_addresses[0])
        ...

`nsq` is an `emberq.embedded.EmbeddedThread`: an nsqd and an nsqlookupd of the test's own, on free ports, with an empty
data folder. They start in milliseconds and are gone after the test. Options of nsqd come from a marker:

    @pytest.mark.nsq(mem_queue_size=0, nsqd_count=2)
    def test_...(nsq):
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from emberq.embedded import EmbeddedThread


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nsq(**options): options of `emberq.embedded.Embedded` for the fixture `nsq`")


@pytest.fixture
def nsq(request: pytest.FixtureRequest) -> Iterator[EmbeddedThread]:
    """A real nsqd and nsqlookupd for this test alone."""
    from emberq.embedded import EmbeddedThread

    marker = request.node.get_closest_marker("nsq")
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    with EmbeddedThread(**options) as running:
        yield running
