"""Secrets that NSQ's tools are given: not on the command line, not in the log, not in an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.embedded import EmbeddedThread
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.embedded import Broker
from tests.support.threaded_http import Reply, ThreadedHttp
from tests.support.tool_process import ToolProcess, run_tool
from tests.support.waiting import wait_until

SECRET = "hunter2"


@pytest.fixture
def guarded() -> Iterator[tuple[AuthServer, EmbeddedThread]]:
    """An nsqd that lets in the clients with a secret, over TCP and HTTP, and the server it asks about them."""
    with (
        AuthServer(grant(entry())) as server,
        EmbeddedThread(with_lookupd=False, auth_http_address=(server.address,), auth_http_api=True) as nsq,
    ):
        yield server, nsq


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.fixture(params=["a file", "the environment"])
def given(request: pytest.FixtureRequest, secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags of a tool that finds the secret there."""
    if request.param == "a file":
        return [f"--auth-secret-file={secret_file}"]
    monkeypatch.setenv("NSQ_AUTH_SECRET", SECRET)
    return []


def test_tools_that_publish_and_consume_show_a_secret_that_is_not_on_the_command_line(
    guarded: tuple[AuthServer, EmbeddedThread], given: list[str]
) -> None:
    server, nsq = guarded
    address = f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}"
    published = run_tool("to_nsq", "--topic=t", address, *given, typed=b"hello\n")
    assert published.returncode == 0, published.stderr
    shown = run_tool("nsq_tail", "--topic=t", "--channel=c", "-n", "1", address, *given)
    assert (shown.returncode, shown.stdout) == (0, b"hello\n"), shown.stderr
    copied = f"--destination-nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}"
    assert run_tool("to_nsq", "--topic=u", address, *given, typed=b"again\n").returncode == 0
    with ToolProcess("nsq_to_nsq", "--topic=u", "--destination-topic=v", address, copied, *given):
        passed_on = run_tool("nsq_tail", "--topic=v", "--channel=c", "-n", "1", address, *given)
    assert passed_on.stdout == b"again\n", passed_on.stderr
    assert {question.params["secret"][0] for question in server.questions} == {SECRET}


def test_nsq_stat_shows_the_secret_to_an_http_api_that_is_guarded(
    guarded: tuple[AuthServer, EmbeddedThread], given: list[str]
) -> None:
    _, nsq = guarded
    address = f"--nsqd-http-address={nsq.nsqd_http_addresses[0]}"
    tcp = f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}"
    assert run_tool("to_nsq", "--topic=t", tcp, *given, typed=b"hello\n").returncode == 0
    assert run_tool("nsq_tail", "--topic=t", "--channel=c", "-n", "1", tcp, *given).returncode == 0
    done = run_tool("nsq_stat", "--topic=t", "--channel=c", "--count=1", "--interval=10ms", address, *given)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "No such file or directory"), ("", "is empty"), ("a\nb", "is not one line of text")],
    ids=["none", "empty", "two lines"],
)
def test_a_file_that_holds_no_secret_ends_the_tool(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    done = run_tool("nsq_tail", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1", f"--auth-secret-file={path}")
    *_, last = done.stderr.decode().splitlines()
    assert last.endswith(f"--auth-secret-file: {path}: {complaint}".replace(": is", " is"))
    assert done.returncode == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--consumer-opt=auth-secrt,hunter2"],
        ["--consumer-opt=auth_secret,hunter2", "--consumer-opt=heartbeat_interval,5m"],
        ["--consumer-opt=auth_secret,hunter2", "--nsqd-tcp-address=127.0.0.1:1"],
        ["--consumer-opt=auth_secret,hunter2", "--auth-secret-file=/dev/null", "--nsqd-tcp-address=127.0.0.1:1"],
    ],
)
def test_no_mistake_shows_the_secret(flags: list[str]) -> None:
    done = run_tool("nsq_tail", "--topic=t", *flags)
    assert done.returncode != 0
    assert SECRET.encode() not in done.stdout + done.stderr


def test_a_secret_that_nsqd_refuses_is_not_shown(secret_file: Path) -> None:
    with AuthServer(grant()) as server, EmbeddedThread(with_lookupd=False, auth_http_address=(server.address,)) as nsq:
        address = f"--nsqd-tcp-address={nsq.nsqd_tcp_addresses[0]}"
        done = run_tool("nsq_tail", "--topic=t", address, f"--auth-secret-file={secret_file}")
    assert done.returncode == 1
    assert b"E_UNAUTHORIZED" in done.stderr
    assert SECRET.encode() not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["--post=http://user:hunter2@127.0.0.1:1/\x01"],
        ["--post=http://127.0.0.1:1/", "--header=Authorization: Bearer hunter2\x01"],
        ["--get=http://user:hunter2@127.0.0.1:1/?token=hunter2"],
    ],
)
def test_no_mistake_in_an_address_or_a_header_shows_its_secret(flags: list[str]) -> None:
    done = run_tool("nsq_to_http", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1", *flags)
    assert done.returncode != 0
    assert SECRET.encode() not in done.stdout + done.stderr


def test_a_delivery_that_fails_does_not_show_the_secret_of_its_address(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", [b"hello"])
    log = tmp_path / "log"
    flags = ["--topic=t", f"--nsqd-tcp-address={broker.tcp_address}"]
    post = "--post=http://user:hunter2@127.0.0.1:1/path?token=hunter2"
    with log.open("wb") as errors, ToolProcess("nsq_to_http", *flags, post, errors=errors):
        wait_until(lambda: b"was not delivered" in log.read_bytes())
    assert SECRET.encode() not in log.read_bytes()
    assert re.search(rb"127\.0\.0\.1:1/path", log.read_bytes())


def test_headers_with_a_secret_come_from_a_file(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", [b"hello"])
    path = tmp_path / "headers"
    path.write_text(f"Authorization: Bearer {SECRET}\n\nX-Other: 1\n")
    with ThreadedHttp(lambda _request: Reply({})) as server:
        flags = [f"--post=http://{server.address}/", f"--header-file={path}"]
        with ToolProcess("nsq_to_http", "--topic=t", f"--nsqd-tcp-address={broker.tcp_address}", *flags):
            wait_until(lambda: bool(server.received))
    (request, *_) = server.received
    assert request.headers["Authorization"] == f"Bearer {SECRET}"
    assert request.headers["X-Other"] == "1"
