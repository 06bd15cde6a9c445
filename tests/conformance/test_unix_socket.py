"""nsqd on a unix socket (row 17). All other conformance tests run over one as well, see this folder's conftest."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.support.harness import NsqdHarness


@pytest.fixture
def transport() -> str:
    return "unix"


@pytest.mark.conformance(17)
def test_a_path_is_a_unix_socket_that_leaves_with_the_server(nsqd: NsqdHarness, listen_address: str) -> None:
    path = Path(listen_address)
    assert stat.S_ISSOCK(path.stat().st_mode)
    consumer = nsqd.consumer("t", "c", rdy=1)
    nsqd.connect().pub("t", b"hello")
    assert consumer.read_message().body == b"hello"
    nsqd.stop()
    assert not path.exists()


@pytest.mark.conformance(17)
def test_a_unix_peer_has_no_name_of_its_own(nsqd: NsqdHarness) -> None:
    nsqd.consumer("t", "c")
    (seen,) = nsqd.channel("t", "c").clients
    assert (seen.client_id, seen.hostname, seen.remote_address) == ("", "", "@")
