"""pynsq, the Python client on tornado, publishes and consumes through our nsqd."""

import sys

import pytest

from tests.integration.contract import ClientContract, Outcome, carry_out

DRIVER = (sys.executable, "-m", "tests.integration.drivers.pynsq_driver")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return carry_out(DRIVER, folder=tmp_path_factory.mktemp("pynsq"))


class TestPynsq(ClientContract):
    """The contract, with a message timeout that the client negotiates."""
