"""pynsq, the Python client on tornado, publishes and consumes through our nsqd. It can connect in every way."""

import sys

import pytest

from tests.integration.connection_kind import EVERY_KIND, carry_out_over
from tests.integration.contract import ClientContract, DeliveryContract, Outcome, carry_out

DRIVER = (sys.executable, "-m", "tests.integration.drivers.pynsq_driver")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return carry_out(DRIVER, folder=tmp_path_factory.mktemp("pynsq"))


class TestPynsq(ClientContract):
    """The contract, with a message timeout that the client negotiates."""


class TestPynsqOverEveryKindOfConnection(DeliveryContract):
    """Encrypted, compressed, authorized, and all together."""

    @pytest.fixture(scope="class", params=EVERY_KIND, ids=str)
    @classmethod
    def outcome(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        return carry_out_over(request.param, DRIVER, folder=tmp_path_factory.mktemp("pynsq"))
