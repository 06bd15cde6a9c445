"""gnsq, the Python client on gevent, publishes and consumes through our nsqd.

It can connect in every way, but its Producer fails after any upgrade of a connection; see the driver, which mends that.
"""

import sys

import pytest

from tests.integration.connection_kind import EVERY_KIND, carry_out_over
from tests.integration.contract import ClientContract, DeliveryContract, Outcome, carry_out
from tests.integration.plan import Plan

DRIVER = (sys.executable, "-m", "tests.integration.drivers.gnsq_driver")
MSG_TIMEOUT = f"--msg-timeout={Plan.msg_timeout_ms}ms"
"""For nsqd: gnsq cannot ask for one itself."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return carry_out(DRIVER, MSG_TIMEOUT, folder=tmp_path_factory.mktemp("gnsq"))


class TestGnsq(ClientContract):
    """The contract, with a message timeout set at the server: gnsq cannot ask for one."""


class TestGnsqOverEveryKindOfConnection(DeliveryContract):
    """Encrypted, compressed, authorized, and all together."""

    @pytest.fixture(scope="class", params=EVERY_KIND, ids=str)
    @classmethod
    def outcome(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        return carry_out_over(request.param, DRIVER, folder=tmp_path_factory.mktemp("gnsq"))
