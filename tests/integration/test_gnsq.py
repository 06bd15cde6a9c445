"""gnsq, the Python client on gevent, publishes and consumes through our nsqd."""

import sys

import pytest

from tests.integration.contract import ClientContract, Outcome, carry_out

DRIVER = (sys.executable, "-m", "tests.integration.drivers.gnsq_driver")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return carry_out(DRIVER, "--msg-timeout=1s", folder=tmp_path_factory.mktemp("gnsq"))


class TestGnsq(ClientContract):
    """The contract, with a message timeout set at the server: gnsq cannot ask for one."""
