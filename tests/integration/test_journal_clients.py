"""pynsq, gnsq and nsqjs work on journaled topics without knowing: the same contract, unchanged.

The kinds of connection, which journals have nothing to do with, are tried with classic topics alone.
"""

from __future__ import annotations

import pytest

from tests.integration import test_gnsq, test_nsqjs, test_pynsq
from tests.integration.contract import TOPIC, ClientContract, Outcome, carry_out

CLIENTS = {
    "pynsq": (test_pynsq.DRIVER, ()),
    "gnsq": (test_gnsq.DRIVER, (test_gnsq.MSG_TIMEOUT,)),
    "nsqjs": (test_nsqjs.DRIVER, ()),
}


class TestClientsOnJournaledTopics(ClientContract):
    """The contract, with messages that lie in memory, and in the journal alone."""

    @pytest.fixture(scope="class", params=CLIENTS)
    @classmethod
    def outcome(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        driver, flags = CLIENTS[request.param]
        folder = tmp_path_factory.mktemp(request.param)
        memory = "--mem-queue-size=100"  # less than a client may be behind
        outcome = carry_out(driver, "--journal", memory, *flags, folder=folder)
        assert (folder / "data" / f"{TOPIC}.journal").is_dir()
        return outcome
