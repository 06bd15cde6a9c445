from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from emberq.cli.argument import add_cluster_flags, addresses, upstreams
from emberq.cli.terminal import CommandError, command_parser
from emberq.cluster.topology import ClusterAddresses
from emberq.cluster.upstream import texts
from tests.support.scripted_server import ScriptedServer, answer


def arguments(*flags: str) -> argparse.Namespace:
    parser = command_parser("emberq try", "Try it.")
    add_cluster_flags(parser)
    return parser.read(flags)


def test_without_an_address_the_nsqd_of_this_machine_is_asked() -> None:
    assert addresses(arguments()) == ClusterAddresses(nsqds=("127.0.0.1:4151",))


def test_addresses_of_one_kind_may_be_given_again() -> None:
    assert addresses(arguments("--lookupd-http-address=a:1", "--lookupd-http-address=b:1")) == ClusterAddresses(
        lookupds=("a:1", "b:1")
    )
    assert addresses(arguments("--nsqd-http-address=a:1", "--nsqd-http-address=b:1")) == ClusterAddresses(
        nsqds=("a:1", "b:1")
    )


def test_addresses_of_both_kinds_are_refused() -> None:
    with pytest.raises(CommandError, match="use --nsqd-http-address or --lookupd-http-address not both"):
        addresses(arguments("--lookupd-http-address=a:1", "--nsqd-http-address=b:1"))


@pytest.mark.loop("uvloop")
async def test_a_secret_is_read_from_its_file_and_shown_to_the_daemons(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    with ScriptedServer(answer(b'{"topics":["t"]}')) as server:
        asking = upstreams(arguments(f"--auth-secret-file={secret}")).get(
            f"127.0.0.1:{server.port}", "/topics", lambda document: texts(document, "topics")
        )
        assert await asking == ["t"]
    assert b"\r\nAuthorization: Bearer s3cret\r\n" in server.requests[0]


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--auth-secret-file"):
        upstreams(arguments(f"--auth-secret-file={tmp_path / 'none'}"))


@pytest.mark.loop("uvloop")
async def test_nsqlookupds_are_shown_their_own_secret(tmp_path: Path) -> None:
    files = []
    for name in ("nsqds", "nsqlookupds"):
        path = tmp_path / name
        path.write_text(f"for-{name}\n")
        files.append(path)
    topics = answer(b'{"topics":["t"]}')
    with ScriptedServer(topics) as nsqd, ScriptedServer(topics, topics) as lookupd:
        address = f"127.0.0.1:{lookupd.port}"
        flags = [f"--auth-secret-file={files[0]}", f"--lookupd-http-address={address}"]
        ask = upstreams(arguments(*flags, f"--lookupd-secret-file={files[1]}"))
        for asked in (f"127.0.0.1:{nsqd.port}", address):
            await ask.get(asked, "/topics", lambda document: texts(document, "topics"))
        await upstreams(arguments(*flags)).get(address, "/topics", lambda document: texts(document, "topics"))
    assert b"\r\nAuthorization: Bearer for-nsqds\r\n" in nsqd.requests[0]
    assert b"\r\nAuthorization: Bearer for-nsqlookupds\r\n" in lookupd.requests[0]
    assert b"\r\nAuthorization: Bearer for-nsqds\r\n" in lookupd.requests[1]
