"""AUTH and what it allows (rows 153-165), against a real authorization server.

Every question is asked while the session is suspended, so these tests also show that commands wait for the answer, in
their order, while other clients go on.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartNsqd
from tests.support.auth_server import AuthServer, Question, entry, grant
from tests.support.certificates import Authority
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import HEARTBEAT, RESPONSE, Client, Frame, mpub_body
from tests.support.waiting import wait_until

SECRET = b"s3cret"
ALL = grant(entry())
Authorizing = Callable[..., tuple[AuthServer, NsqdHarness]]


@pytest.fixture
def authorizing(start_nsqd: StartNsqd) -> Iterator[Authorizing]:
    """Starts an authorization server that gives this answer, and nsqd that asks it."""
    with ExitStack() as running:

        def start(answer: Any = ALL, **options: Any) -> tuple[AuthServer, NsqdHarness]:
            server = running.enter_context(AuthServer(answer))
            return server, start_nsqd(auth_http_address=(server.address,), **options)

        yield start


def authorize(client: Client, secret: bytes = SECRET) -> bytes:
    """AUTH; returns its answer."""
    client.command(b"AUTH", secret)
    return client.read_response()


def authorized(nsqd: NsqdHarness) -> Client:
    client = nsqd.connect()
    authorize(client)
    return client


def wait_for_question(server: AuthServer, count: int = 1) -> None:
    wait_until(lambda: len(server.questions) == count)


# AUTH itself.


@pytest.mark.conformance(153)
def test_a_secret_with_no_authorizations_is_refused(authorizing: Authorizing) -> None:
    _, nsqd = authorizing(grant())
    client = nsqd.connect()
    client.command(b"AUTH", SECRET)
    client.expect_fatal("E_UNAUTHORIZED AUTH no authorizations found")


@pytest.mark.conformance(154)
def test_a_good_secret_opens_what_it_is_for(authorizing: Authorizing) -> None:
    _, nsqd = authorizing(grant(entry(topic="test")))
    client = nsqd.connect()
    assert client.identify()["auth_required"] is True
    assert authorize(client) == b'{"identity":"","identity_url":"","permission_count":1}'
    client.sub("test", "ch")


def test_the_answer_says_who_the_client_is(authorizing: Authorizing) -> None:
    _, nsqd = authorizing(grant(entry(), entry(), identity="joe", identity_url="http://joe?a&b"))
    answer = authorize(nsqd.connect())
    assert answer == b'{"identity":"joe","identity_url":"http://joe?a\\u0026b","permission_count":2}'


@pytest.mark.conformance(155)
def test_the_server_learns_of_tls_and_the_clients_certificate(authorizing: Authorizing, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "trusted")
    server, nsqd = authorizing(
        **authority.issue("server").options(),
        tls_root_ca_file=str(authority.path),
        tls_client_auth_policy="require-verify",
    )
    client = nsqd.connect()
    client.identify(tls_v1=True)
    encrypt(client, authority)
    client.expect_ok()
    authorize(client)
    assert server.questions[0].params["tls"] == ["true"]
    assert server.questions[0].params["common_name"] == ["test.local"]


def encrypt(client: Client, authority: Authority) -> None:
    """The client's half of the upgrade, with a certificate for test.local."""
    pair = authority.issue("test.local")
    context = ssl.create_default_context(cafile=authority.path)
    context.check_hostname = False
    context.load_cert_chain(pair.certificate_path, pair.key_path)
    client.socket = context.wrap_socket(client.socket)


@pytest.mark.conformance(156)
def test_the_question_may_be_posted(authorizing: Authorizing) -> None:
    server, nsqd = authorizing(grant(entry(topic="test")), auth_http_request_method="post")
    client = authorized(nsqd)
    client.sub("test", "ch")
    (question,) = server.questions
    assert question.method == "POST"
    assert question.headers["Content-Type"] == "application/json"
    assert question.params["secret"] == ["s3cret"]
    assert sorted(question.params) == ["common_name", "remote_ip", "secret", "tls"]


@pytest.mark.conformance(157)
def test_the_question_says_who_asks(authorizing: Authorizing, transport: str) -> None:
    server, nsqd = authorizing()
    authorize(nsqd.connect(), b"a secret & more")
    remote_ip = "127.0.0.1" if transport == "tcp" else ""
    assert server.questions[0].method == "GET"
    assert server.questions[0].params == {
        "common_name": [""],
        "remote_ip": [remote_ip],
        "secret": ["a secret & more"],
        "tls": ["false"],
    }


@pytest.mark.conformance(159)
def test_a_second_auth_is_refused(authorizing: Authorizing) -> None:
    server, nsqd = authorizing()
    client = authorized(nsqd)
    client.command(b"AUTH", SECRET)
    client.expect_fatal("E_INVALID AUTH already set")
    assert len(server.questions) == 1


@pytest.mark.conformance(160)
def test_auth_is_refused_where_nobody_can_be_asked(client: Client) -> None:
    assert client.identify()["auth_required"] is False
    client.command(b"AUTH", SECRET)
    client.expect_fatal("E_AUTH_DISABLED AUTH disabled")


@pytest.mark.conformance(161)
def test_auth_takes_no_parameter(authorizing: Authorizing) -> None:
    _, nsqd = authorizing()
    client = nsqd.connect()
    client.command(b"AUTH s3cret", SECRET)
    client.expect_fatal("E_INVALID AUTH invalid number of parameters")


@pytest.mark.conformance(163)
@pytest.mark.parametrize(
    "answer",
    [
        grant(entry(), ttl=0),
        grant(entry(permissions=["publish", "admin"])),
        grant(entry(topic="(")),
        grant(entry(channels=["["])),
        b"certainly",
        b"[]",
    ],
    ids=["ttl", "permission", "topic", "channel", "text", "list"],
)
def test_an_answer_that_cannot_be_understood_fails_the_auth(authorizing: Authorizing, answer: Any) -> None:
    _, nsqd = authorizing(answer)
    client = nsqd.connect()
    client.command(b"AUTH", SECRET)
    client.expect_fatal("E_AUTH_FAILED AUTH failed")


def test_a_server_that_is_not_there_fails_the_auth(start_nsqd: StartNsqd) -> None:
    with AuthServer(ALL) as server:
        address = server.address
    client = start_nsqd(auth_http_address=(address,)).connect()
    client.command(b"AUTH", SECRET)
    client.expect_fatal("E_AUTH_FAILED AUTH failed")


def test_another_server_is_asked_if_one_does_not_answer(start_nsqd: StartNsqd) -> None:
    with AuthServer(b"?") as broken, AuthServer(ALL) as good:
        nsqd = start_nsqd(auth_http_address=(broken.address, good.address))
        for _ in range(5):
            authorized(nsqd)
    assert len(good.questions) == 5


# What commands need.

COMMANDS: dict[str, tuple[bytes, bytes | None]] = {
    "SUB": (b"SUB tt c2", None),
    "PUB": (b"PUB tt", b"body"),
    "MPUB": (b"MPUB tt", mpub_body([b"one", b"two"])),
    "DPUB": (b"DPUB tt 100", b"body"),
}


@pytest.mark.conformance(158)
@pytest.mark.parametrize("verb", COMMANDS)
def test_auth_comes_first(authorizing: Authorizing, verb: str) -> None:
    _, nsqd = authorizing()
    client = nsqd.connect()
    client.command(*COMMANDS[verb])
    client.expect_fatal(f"E_AUTH_FIRST AUTH required before {verb}")
    assert not nsqd.has_topic("tt")


@pytest.mark.conformance(162)
@pytest.mark.parametrize("verb", COMMANDS)
def test_an_entry_for_another_channel_allows_none_of_it(authorizing: Authorizing, verb: str) -> None:
    _, nsqd = authorizing(grant(entry(topic="tt", channels=["c1"])))
    client = authorized(nsqd)
    client.command(*COMMANDS[verb])
    channel = "c2" if verb == "SUB" else ""
    client.expect_fatal(f'E_UNAUTHORIZED AUTH failed for {verb} on "tt" "{channel}"')
    assert not nsqd.has_topic("tt")


def test_what_is_allowed_works_as_ever(authorizing: Authorizing) -> None:
    _, nsqd = authorizing()
    producer, consumer = authorized(nsqd), authorized(nsqd)
    consumer.sub("tt", "c1")
    consumer.rdy(5)
    producer.pub("tt", b"one")
    producer.mpub("tt", [b"two", b"three"])
    producer.dpub("tt", 0, b"four")
    messages = consumer.read_messages(4)
    assert sorted(message.body for message in messages) == [b"four", b"one", b"three", b"two"]
    for message in messages:
        consumer.fin(message)


@pytest.mark.parametrize("is_authorized", [False, True])
def test_a_malformed_mpub_makes_no_topic_that_it_may_not_publish_to(
    authorizing: Authorizing, is_authorized: bool
) -> None:
    _, nsqd = authorizing(grant(entry(topic="other")))
    client = authorized(nsqd) if is_authorized else nsqd.connect()
    client.command(b"MPUB tt", b"")
    refusal = (
        'E_UNAUTHORIZED AUTH failed for MPUB on "tt" ""' if is_authorized else "E_AUTH_FIRST AUTH required before MPUB"
    )
    client.expect_fatal(refusal)
    assert not nsqd.has_topic("tt")


# Expiry.


@pytest.mark.conformance(164)
@pytest.mark.parametrize(
    ("answer", "error"),
    [(grant(), 'E_UNAUTHORIZED AUTH failed for PUB on "tt" ""'), (b"?", "E_AUTH_FAILED AUTH failed")],
    ids=["empty", "broken"],
)
def test_an_authorization_that_is_gone_when_it_is_renewed(authorizing: Authorizing, answer: Any, error: str) -> None:
    server, nsqd = authorizing(grant(entry(), ttl=1))
    client = authorized(nsqd)
    client.pub("tt", b"in time")
    server.answer = answer
    nsqd.advance(ms=1000)
    client.command(b"PUB tt", b"too late")
    client.expect_fatal(error)
    assert nsqd.topic("tt").message_count == 1


@pytest.mark.parametrize("verb", COMMANDS)
def test_an_expired_authorization_is_renewed_by_the_next_command(authorizing: Authorizing, verb: str) -> None:
    server, nsqd = authorizing(grant(entry(topic="old"), ttl=10))
    client = authorized(nsqd)
    server.answer = grant(entry(topic="tt"), ttl=10)
    nsqd.advance(ms=10_000)
    client.command(*COMMANDS[verb])
    client.expect_ok()
    assert [question.params["secret"] for question in server.questions] == [["s3cret"], ["s3cret"]]


def test_a_subscription_outlives_its_authorization(authorizing: Authorizing) -> None:
    server, nsqd = authorizing(grant(entry(), ttl=1))
    consumer = authorized(nsqd)
    consumer.sub("tt", "c1")
    server.answer = b"?"
    nsqd.advance(ms=2000)
    publish(nsqd, "tt")
    consumer.rdy(1)
    consumer.fin(consumer.read_message())
    consumer.nop()
    consumer.command(b"CLS")
    assert consumer.read_response() == b"CLOSE_WAIT"
    assert len(server.questions) == 1


def publish(nsqd: NsqdHarness, topic: str) -> None:
    """As the HTTP API does, which needs no authorization."""
    nsqd.call(lambda: nsqd.broker.topic(topic).publish(b"\x00\x00\x00\x01x", [5]))


# While the answer is awaited.


def test_commands_behind_auth_wait_for_its_answer(authorizing: Authorizing) -> None:
    server, nsqd = authorizing()
    client = nsqd.connect()
    server.gate.clear()
    client.send(b"AUTH\n\x00\x00\x00\x06s3cretPUB tt\n\x00\x00\x00\x01aPUB t")
    wait_for_question(server)
    client.send(b"t\n\x00\x00\x00\x01bNOP\nSUB tt c1\n")
    nsqd.settle()
    assert not client.has_input()
    assert not nsqd.has_topic("tt")
    server.gate.set()
    assert client.read_response().startswith(b'{"identity"')
    for _ in range(3):
        client.expect_ok()
    assert nsqd.topic("tt").message_count == 2


def test_commands_behind_a_renewal_wait_for_its_answer(authorizing: Authorizing) -> None:
    server, nsqd = authorizing(grant(entry(), ttl=1))
    client = authorized(nsqd)
    nsqd.advance(ms=1000)
    server.gate.clear()
    for body in (b"a", b"b"):
        client.command(b"PUB tt", body)
    client.command(b"SUB tt c1")
    wait_for_question(server, 2)
    nsqd.settle()
    assert not client.has_input()
    server.gate.set()
    for _ in range(3):
        client.expect_ok()
    client.rdy(2)
    assert [client.read_message().body for _ in range(2)] == [b"a", b"b"]


def test_other_clients_go_on_meanwhile(authorizing: Authorizing) -> None:
    server, nsqd = authorizing()
    other = authorized(nsqd)
    server.gate.clear()
    nsqd.connect().command(b"AUTH", SECRET)
    wait_for_question(server, 2)
    other.pub("tt", b"body")
    server.gate.set()


def test_heartbeats_go_on_meanwhile_and_silence_is_forgiven(authorizing: Authorizing) -> None:
    server, nsqd = authorizing()
    client = nsqd.connect()
    client.identify(heartbeat_interval=1000)
    server.gate.clear()
    client.command(b"AUTH", SECRET)
    wait_for_question(server)
    nsqd.advance(ms=4000)
    server.gate.set()
    frames = [client.read_frame() for _ in range(4)]
    assert frames == [Frame(RESPONSE, HEARTBEAT)] * 4
    assert client.read_response().startswith(b'{"identity"')
    client.pub("tt", b"still here")


def test_a_client_may_leave_before_the_answer(authorizing: Authorizing) -> None:
    server, nsqd = authorizing()
    client = nsqd.connect()
    server.gate.clear()
    client.command(b"AUTH", SECRET)
    wait_for_question(server)
    client.close()
    server.gate.set()
    authorized(nsqd).pub("tt", b"body")


def test_nsqd_may_stop_before_the_answer(authorizing: Authorizing) -> None:
    server, nsqd = authorizing()
    client = nsqd.connect()
    server.gate.clear()
    client.command(b"AUTH", SECRET)
    wait_for_question(server)
    nsqd.stop()
    client.expect_closed()


# What is known of it.


def test_statistics_show_who_is_authorized(authorizing: Authorizing) -> None:
    _, nsqd = authorizing(grant(entry(), identity="joe", identity_url="http://joe"))
    client = authorized(nsqd)
    client.pub("tt", b"body")
    (producer,) = nsqd.producers()
    assert (producer.authed, producer.auth_identity, producer.auth_identity_url) == (True, "joe", "http://joe")
    assert "s3cret" not in repr(producer)


@pytest.mark.parametrize("answer", [ALL, grant(), b"s3cret", grant(entry(topic="s3cret("))])
def test_no_log_line_holds_the_secret(authorizing: Authorizing, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        server, nsqd = authorizing(answer)
        client = nsqd.connect()
        client.command(b"AUTH", SECRET)
        client.read_frame()
        client.reset()
        nsqd.stop()
    assert [question.params["secret"] for question in server.questions] == [["s3cret"]]
    assert "TCP: new client" in caplog.text
    assert "s3cret" not in caplog.text


# HTTP.


def http_client(nsqd: NsqdHarness) -> HttpClient:
    address = nsqd.nsqd.http_address
    assert address is not None
    return HttpClient(address)


@pytest.mark.conformance(165)
def test_the_http_api_is_open_to_all_unless_it_is_guarded(authorizing: Authorizing) -> None:
    server, nsqd = authorizing(http_address="127.0.0.1:0")
    answer = http_client(nsqd).request("POST", "/pub?topic=tt", b"body")
    assert (answer.status, answer.body) == (200, b"OK")
    assert server.questions == []


def test_the_guarded_http_api_asks_the_same_servers(authorizing: Authorizing) -> None:
    server, nsqd = authorizing(grant(entry(topic="^tt$")), http_address="127.0.0.1:0", auth_http_api=True)
    http = http_client(nsqd)

    def publish(topic: str, **headers: str) -> tuple[int, bytes]:
        answer = http.request("POST", f"/pub?topic={topic}", b"body", headers=headers)
        return answer.status, answer.body

    assert http.request("GET", "/ping").status == 200
    assert http.request("GET", "/stats").status == 200
    assert publish("tt") == (401, b'{"message":"UNAUTHORIZED"}')
    assert server.questions == []
    assert publish("tt", Authorization="Bearer s3cret") == (200, b"OK")
    assert publish("other", Authorization="Bearer s3cret") == (403, b'{"message":"FORBIDDEN"}')
    assert publish("tt", Authorization="Bearer s3cret") == (200, b"OK")
    assert [_asked(question) for question in server.questions] == [("s3cret", "127.0.0.1", "false")]
    assert nsqd.topic("tt").message_count == 2
    assert not nsqd.has_topic("other")


def _asked(question: Question) -> tuple[str, str, str]:
    params = question.params
    return params["secret"][0], params["remote_ip"][0], params["tls"][0]
