"""Consumers of every client library find their topic through our nsqlookupd.

The consumer knows nothing but nsqlookupd's HTTP address and starts when no nsqd has its topic. An operator has
announced topic and channel to nsqlookupd, as one does lest the first messages miss a consumer that is on its way:

    consumer ──/lookup──> nsqlookupd      no nsqd yet
    producer ──PUB──────> nsqd            makes the topic, with the channel that nsqlookupd names
                          nsqd ──REGISTER──> nsqlookupd
    consumer ──/lookup──> nsqlookupd      found
    consumer ──SUB──────> nsqd            everything, from the first message on

All of it happens twice: with everything open, and with everything closed, where each side shows its certificate, and
asks nsqlookupd by HTTPS with a secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from tests.integration.connection_kind import ConnectionKind, prepared
from tests.integration.contract import CHANNEL, TOPIC, DeliveryContract, Outcome, carry_out
from tests.integration.test_gnsq import DRIVER as GNSQ
from tests.integration.test_nsqjs import DRIVER as NSQJS
from tests.integration.test_pynsq import DRIVER as PYNSQ
from tests.support.nsqlookupd_process import NsqlookupdProcess
from tests.support.waiting import PATIENCE_S

DRIVERS = {"pynsq": PYNSQ, "gnsq": GNSQ, "nsqjs": NSQJS}
ANNOUNCEMENT = f"/channel/create?topic={TOPIC}&channel={CHANNEL}"
LOOKUPD_SECRET = "correct-horse-battery-staple"

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
        assert nsqlookupd.http.post(ANNOUNCEMENT).status == 200
        return carry_out(
            driver,
            f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
            folder=folder,
            lookupd_http_address=nsqlookupd.http_address,
            **FEW,
        )


def carry_out_through_closed_nsqlookupd(driver: Sequence[str], *, folder: Path) -> Outcome:
    """The same with an nsqd and an nsqlookupd that ask for certificates, and by HTTP for a secret too."""
    secret_path = folder / "secret"
    secret_path.write_text(LOOKUPD_SECRET)
    secret_path.chmod(0o600)
    with prepared(ConnectionKind(tls=True, client_certificate=True), folder) as closed:
        tls_flags = [flag for flag in closed.nsqd_flags if flag.startswith("--tls-") and "required" not in flag]
        flags = [*tls_flags, f"--http-secret-file={secret_path}"]
        with NsqlookupdProcess(*flags, log_path=folder / "nsqlookupd.log") as nsqlookupd:
            _announce(nsqlookupd.http_port, **closed.plan_fields)
            outcome = carry_out(
                driver,
                *closed.nsqd_flags,
                f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
                "--lookupd-tls",
                f"--lookupd-tls-root-ca-file={closed.plan_fields['authority_path']}",
                f"--lookupd-secret-file={secret_path}",
                "--broadcast-address=127.0.0.1",
                folder=folder,
                lookupd_http_address=nsqlookupd.http_address,
                lookupd_secret=LOOKUPD_SECRET,
                **FEW,
                **closed.plan_fields,
            )
        assert LOOKUPD_SECRET not in nsqlookupd.log
        return outcome


def _announce(http_port: int, *, authority_path: str, certificate_path: str, key_path: str, **_fields: Any) -> None:
    context = ssl.create_default_context(cafile=authority_path)
    context.load_cert_chain(certificate_path, key_path)
    connection = HTTPSConnection("127.0.0.1", http_port, timeout=PATIENCE_S, context=context)
    connection.request("POST", ANNOUNCEMENT, headers={"Authorization": f"Bearer {LOOKUPD_SECRET}"})
    assert connection.getresponse().status == 200
    connection.close()


class TestDiscoveryThroughNsqlookupd(DeliveryContract):
    """The contract holds although nobody told the consumer where nsqd is."""

    @pytest.fixture(scope="class", params=list(DRIVERS))
    @classmethod
    def outcome(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        folder = tmp_path_factory.mktemp(request.param)
        return carry_out_through_nsqlookupd(DRIVERS[request.param], folder=folder)


class TestDiscoveryThroughAClosedNsqlookupd(DeliveryContract):
    """The contract holds with everything closed. What each library has to be told for that is in its driver."""

    @pytest.fixture(scope="class", params=list(DRIVERS))
    @classmethod
    def outcome(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        folder = tmp_path_factory.mktemp(request.param)
        return carry_out_through_closed_nsqlookupd(DRIVERS[request.param], folder=folder)
