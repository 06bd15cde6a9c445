"""Consumers of every client library find their topic through our nsqlookupd.

The consumer knows nothing but nsqlookupd's HTTP address and starts when no nsqd has its topic. An operator has
announced topic and channel to nsqlookupd, as one does lest the first messages miss a consumer that is on its way:

    consumer ──/lookup──> nsqlookupd      no nsqd yet
    producer ──PUB──────> nsqd            makes the topic, with the channel that nsqlookupd names
                          nsqd ──REGISTER──> nsqlookupd
    consumer ──/lookup──> nsqlookupd      found
    consumer ──SUB──────> nsqd            everything, from the first message on
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integration.contract import CHANNEL, TOPIC, DeliveryContract, Outcome, carry_out
from tests.integration.test_gnsq import DRIVER as GNSQ
from tests.integration.test_nsqjs import DRIVER as NSQJS
from tests.integration.test_pynsq import DRIVER as PYNSQ
from tests.support.nsqlookupd_process import NsqlookupdProcess

DRIVERS = {"pynsq": PYNSQ, "gnsq": GNSQ, "nsqjs": NSQJS}

# Few messages, none of which waits for a timeout: what is tried here is how they are found.
FEW: dict[str, Any] = {
    "message_count": 200,
    "single_count": 100,
    "batch_size": 50,
    "msg_timeout_ms": 30_000,
    "defer_ms": 300,
    "linger_ms": 100,
    "requeued": (10, 60),
    "deferred": (5, 55),
    "abandoned": (),
    "touched": (),
}


def carry_out_through_nsqlookupd(driver: Sequence[str], *, folder: Path) -> Outcome:
    """Run a driver whose consumer is told of nsqlookupd only."""
    with NsqlookupdProcess(log_path=folder / "nsqlookupd.log") as nsqlookupd:
        announced = nsqlookupd.http.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
        assert announced.status == 200
        return carry_out(
            driver,
            f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
            folder=folder,
            lookupd_http_address=nsqlookupd.http_address,
            **FEW,
        )


class TestDiscoveryThroughNsqlookupd(DeliveryContract):
    """The contract holds although nobody told the consumer where nsqd is."""

    @pytest.fixture(scope="class", params=list(DRIVERS))
    @classmethod
    def outcome(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        folder = tmp_path_factory.mktemp(request.param)
        return carry_out_through_nsqlookupd(DRIVERS[request.param], folder=folder)
