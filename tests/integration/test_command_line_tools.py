"""nsqd and what a person has at hand: `curl` and `openssl s_client`, run as one would type them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import StartNsqdProcess
from tests.integration.listening import ANY_HTTP_PORT, ANY_HTTPS_PORT, port_of
from tests.support.certificates import Authority, KeyPair
from tests.support.command import require_command
from tests.support.nsqd_process import NsqdProcess
from tests.support.raw_client import Client

COMMAND_TIMEOUT_S = 30.0
AWAITING_CONTINUE = ("--header", "Expect: 100-continue", "--expect100-timeout", "20")
"""Without a word of nsqd curl would send the body after a second, which a busy machine may take."""
NO_TRUST_IN_THE_SERVER = 60
"""curl's exit code if a certificate is not signed by an authority it knows."""


class CommandLine:
    """Runs commands with nothing of the user's own settings, such as proxies or ~/.curlrc."""

    def __init__(self, home: Path) -> None:
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C"}

    def run(self, command: str, *arguments: str | Path, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """The command's output and exit code; `typed` is its standard input."""
        require_command(command)
        return subprocess.run(
            [command, *arguments],
            input=typed,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            env=self._environment,
            check=False,
        )

    def curl(self, *arguments: str | Path) -> bytes:
        """The output of a curl that must succeed."""
        ended = self.run("curl", "--silent", "--show-error", *arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    return CommandLine(home=tmp_path)


def http(nsqd: NsqdProcess, target: str) -> str:
    return f"http://127.0.0.1:{port_of(nsqd, 'HTTP')}{target}"


def https(nsqd: NsqdProcess, target: str) -> str:
    return f"https://127.0.0.1:{port_of(nsqd, 'HTTPS')}{target}"


def serving_with(pair: KeyPair) -> list[str]:
    """nsqd's flags for this certificate."""
    return [ANY_HTTPS_PORT, f"--tls-cert={pair.certificate_path}", f"--tls-key={pair.key_path}"]


def demanding_certificates_of(authority: Authority) -> list[str]:
    return [f"--tls-root-ca-file={authority.path}", "--tls-client-auth-policy=require-verify"]


def finish_all(consumer: Client, *, count: int) -> list[bytes]:
    """The bodies of the next messages."""
    bodies: list[bytes] = []
    for _ in range(count):
        message = consumer.read_message()
        consumer.fin(message)
        bodies.append(message.body)
    return bodies


# curl over plain HTTP.


def test_curl_publishes_what_a_consumer_receives(
    start_nsqd_process: StartNsqdProcess, command_line: CommandLine
) -> None:
    nsqd = start_nsqd_process(ANY_HTTP_PORT)
    consumer = nsqd.consumer("t", "c", rdy=1)
    assert command_line.curl("--data", "hello world 1", http(nsqd, "/pub?topic=t")) == b"OK"
    assert finish_all(consumer, count=1) == [b"hello world 1"]


def test_curl_asks_for_compressed_statistics(start_nsqd_process: StartNsqdProcess, command_line: CommandLine) -> None:
    nsqd = start_nsqd_process(ANY_HTTP_PORT)
    topics = [f"topic-{number}" for number in range(20)]
    for topic in topics:
        command_line.curl("--request", "POST", http(nsqd, f"/topic/create?topic={topic}"))
    target = http(nsqd, "/stats?format=json")
    shown = json.loads(command_line.curl("--compressed", target))
    assert [topic["topic_name"] for topic in shown["topics"]] == sorted(topics)
    headers = command_line.curl("--compressed", "--dump-header", "-", "--output", os.devnull, target)
    assert b"content-encoding: gzip" in headers.lower()


def test_curl_speaks_http_1_0(start_nsqd_process: StartNsqdProcess, command_line: CommandLine) -> None:
    nsqd = start_nsqd_process(ANY_HTTP_PORT)
    answer = command_line.curl("--http1.0", "--include", http(nsqd, "/ping"))
    assert re.match(rb"HTTP/1\.[01] 200 OK\r\n", answer)
    assert answer.endswith(b"\r\n\r\nOK")


def test_curl_is_told_to_continue_with_a_large_body(
    start_nsqd_process: StartNsqdProcess, command_line: CommandLine, tmp_path: Path
) -> None:
    nsqd = start_nsqd_process(ANY_HTTP_PORT)
    bodies = [b"%04d" % number * 25_000 for number in range(30)]
    (tmp_path / "lines").write_bytes(b"\n".join(bodies))
    consumer = nsqd.consumer("t", "c", rdy=len(bodies))
    answer = command_line.curl(
        "--include", *AWAITING_CONTINUE, "--data-binary", f"@{tmp_path / 'lines'}",
        http(nsqd, "/mpub?topic=t"),
    )  # fmt: skip
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert finish_all(consumer, count=len(bodies)) == bodies


def test_curl_is_refused_a_too_large_body_before_it_sends_it(
    start_nsqd_process: StartNsqdProcess, command_line: CommandLine, tmp_path: Path
) -> None:
    nsqd = start_nsqd_process(ANY_HTTP_PORT, "--max-msg-size=1000")
    (tmp_path / "body").write_bytes(b"x" * 5_000_000)
    outcome = command_line.curl(
        *AWAITING_CONTINUE, "--data-binary", f"@{tmp_path / 'body'}",
        "--output", os.devnull, "--write-out", "%{http_code} after %{size_upload} bytes",
        http(nsqd, "/pub?topic=t"),
    )  # fmt: skip
    assert outcome == b"413 after 0 bytes"


# curl over HTTPS.


def test_curl_trusts_anybody_if_told_to(
    start_nsqd_process: StartNsqdProcess, command_line: CommandLine, authority: Authority
) -> None:
    nsqd = start_nsqd_process(*serving_with(authority.issue("server")))
    consumer = nsqd.consumer("t", "c", rdy=1)
    assert command_line.curl("-k", "--data", "secret", https(nsqd, "/pub?topic=t")) == b"OK"
    assert finish_all(consumer, count=1) == [b"secret"]
    distrustful = command_line.run("curl", "--silent", https(nsqd, "/ping"))
    assert distrustful.returncode == NO_TRUST_IN_THE_SERVER


def test_curl_shows_a_certificate_where_one_is_demanded(
    start_nsqd_process: StartNsqdProcess, command_line: CommandLine, authority: Authority
) -> None:
    nsqd = start_nsqd_process(*serving_with(authority.issue("server")), *demanding_certificates_of(authority))
    client = authority.issue("client")
    shown = ("--cert", client.certificate_path, "--key", client.key_path)
    target = https(nsqd, "/ping")
    assert command_line.curl("--cacert", authority.path, *shown, target) == b"OK"
    refused = command_line.run("curl", "--silent", "--cacert", authority.path, target)
    assert refused.returncode != 0
    assert refused.stdout == b""


# openssl.


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_verifies_the_server_and_speaks_http_through_it(
    start_nsqd_process: StartNsqdProcess, command_line: CommandLine, authority: Authority, version: str
) -> None:
    nsqd = start_nsqd_process(*serving_with(authority.issue("server")))
    ended = command_line.run(
        "openssl", "s_client", "-connect", f"127.0.0.1:{port_of(nsqd, 'HTTPS')}", version,
        "-CAfile", authority.path, "-verify_ip", "127.0.0.1", "-verify_return_error", "-ign_eof",
        typed=b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )  # fmt: skip
    assert b"Verify return code: 0 (ok)" in ended.stdout
    assert b"HTTP/1.1 200 OK\r\n" in ended.stdout
    assert b"\r\n\r\nOK" in ended.stdout
    assert ended.returncode == 0
