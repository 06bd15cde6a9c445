"""What a client sees on one connection: answers, their order, and how it ends."""

from __future__ import annotations

import logging
import ssl
import tempfile
from pathlib import Path

import pytest

from tests.http.conftest import StartServer
from tests.http.harness import HttpHarness
from tests.http.site import BIG, FILE_POSITION, HUGE, MAX_ECHO_BYTES, MAX_UPLOAD_BYTES
from tests.support.certificates import self_signed
from tests.support.raw_http_client import RawClient, cut_answers, request
from tests.support.waiting import wait_until

# Answers.


def test_a_text_answer_has_exactly_these_headers(client: RawClient) -> None:
    answer = client.ask("POST", "/echo", b"hello")
    assert (answer.status, answer.reason, answer.body) == (200, "OK", b"hello")
    assert answer.headers == {
        "x-nsq-content-type": "nsq; version=1.0",
        "content-type": "text/plain; charset=utf-8",
        "content-length": "5",
        "date": "Tue, 14 Nov 2023 22:13:20 GMT",
    }


def test_the_date_is_the_clocks_from_second_to_second(server: HttpHarness, client: RawClient) -> None:
    client.ask("GET", "/ping")
    server.advance(ms=1500)
    assert client.ask("GET", "/ping").headers["date"] == "Tue, 14 Nov 2023 22:13:21 GMT"


def test_a_plain_answer_is_not_marked_as_nsqs(client: RawClient) -> None:
    answer = client.ask("GET", "/ping")
    assert answer.body == b"OK"
    assert "x-nsq-content-type" not in answer.headers


def test_an_empty_answer_has_no_content_type(client: RawClient) -> None:
    answer = client.ask("POST", "/topic/create")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == "0"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert "content-type" not in answer.headers


def test_a_connection_serves_one_request_after_the_other(client: RawClient) -> None:
    for number in range(20):
        assert client.ask("POST", "/echo", b"%d" % number).body == b"%d" % number
    assert client.ask("GET", "/config/id").json == {"option": "id"}


def test_the_same_head_with_other_bodies_is_answered_with_those(client: RawClient) -> None:
    assert [client.ask("POST", "/echo", body).body for body in (b"one", b"two", b"six")] == [b"one", b"two", b"six"]


def test_a_handler_sees_who_asks(client: RawClient) -> None:
    assert client.ask("GET", "/who", X_Who="me").json == [client.address, False, "me"]


def test_two_clients_with_the_same_request_are_told_apart(server: HttpHarness) -> None:
    clients = [server.connect(), server.connect()]
    for _ in range(2):
        assert [client.ask("GET", "/who").json[0] for client in clients] == [c.address for c in clients]


def test_a_refusing_handler_gives_its_error(client: RawClient) -> None:
    assert client.ask("GET", "/refuse").error == (404, "TOPIC_NOT_FOUND")
    assert client.ask("GET", "/refuse-later").error == (404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize(("path", "what"), [("/crash", "on purpose"), ("/crash-later", "on purpose, later")])
def test_a_crashing_handler_is_an_internal_error_and_is_logged(
    client: RawClient, caplog: pytest.LogCaptureFixture, path: str, what: str
) -> None:
    assert client.ask("GET", path).error == (500, "INTERNAL_ERROR")
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info and record.exc_info[1]] == [(what,)]
    assert client.ask("GET", "/ping").status == 200


def test_a_head_request_is_refused_without_a_body(client: RawClient) -> None:
    answer = client.ask("HEAD", "/ping")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS")
    assert answer.headers["content-length"] == "32"
    assert client.ask("GET", "/ping").body == b"OK"


def test_a_request_answered_is_a_line_of_the_log(
    server: HttpHarness, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="emberq")
    client.ask("GET", "/config/id?x=%20")
    client.ask("GET", "/nowhere")
    client.send(b"nonsense\r\n\r\n")
    client.read_to_end()
    server.settle()
    assert [record.getMessage() for record in caplog.records] == [
        f"200 GET /config/id?x=%20 ({client.address}) 0s",
        f"404 GET /nowhere ({client.address}) 0s",
        f"400 - - ({client.address}) 0s",
    ]


def test_a_quiet_route_is_not_logged_even_when_it_refuses(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="emberq")
    assert client.ask("POST", "/echo", b"x").status == 200
    assert client.ask("POST", "/echo", b"x" * (MAX_ECHO_BYTES + 1)).status == 413
    assert not caplog.records


# Order.


def test_pipelined_requests_are_answered_in_order(client: RawClient) -> None:
    client.send(b"".join(request("POST", "/echo", b"%d" % number) for number in range(300)))
    assert [client.read_answer().body for _ in range(300)] == [b"%d" % number for number in range(300)]


def test_a_fast_answer_does_not_overtake_a_slow_one(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate") + request("GET", "/ping") + request("GET", "/crash-later"))
    server.settle()
    assert not server.site.seen
    server.open_gate()
    assert [client.read_answer().status for _ in range(3)] == [200, 200, 500]
    assert [seen.path for seen in server.site.seen] == ["/ping"]


def test_what_arrives_while_a_handler_runs_is_answered_afterwards(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate"))
    server.settle()
    client.send(request("POST", "/echo", b"one"))
    server.settle()
    client.send(request("POST", "/echo", b"two")[:-1])
    server.settle()
    server.open_gate()
    assert client.read_answer().body == b"through"
    assert client.read_answer().body == b"one"
    client.send(b"o")
    assert client.read_answer().body == b"two"


def test_a_slow_request_holds_up_nobody_else(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate"))
    assert server.connect().ask("GET", "/ping").status == 200
    server.open_gate()
    assert client.read_answer().body == b"through"


def test_a_flood_of_requests_waits_for_its_turn_and_is_answered_completely(
    server: HttpHarness, client: RawClient
) -> None:
    count = 5000
    client.send(request("GET", "/ping") * count)
    assert [client.read_answer().status for _ in range(count)] == [200] * count
    assert len(server.site.seen) == count


# Keeping and closing.


def test_connection_close_is_honoured(client: RawClient) -> None:
    answer = client.ask("GET", "/ping", connection="close")
    assert answer.closes
    assert client.is_closed_by_server()


def test_nothing_behind_the_last_request_is_answered(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate", connection="close") + request("GET", "/ping"))
    server.settle()
    server.open_gate()
    assert [answer.body for answer in cut_answers(client.read_to_end())] == [b"through"]
    assert not server.site.seen


def test_http_1_0_closes_unless_asked_not_to(server: HttpHarness, client: RawClient) -> None:
    client.send(b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    answer = client.read_answer()
    assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")
    client.send(b"GET /ping HTTP/1.0\r\n\r\n")
    assert client.read_answer().closes
    assert client.is_closed_by_server()


def test_a_client_that_ends_its_side_still_gets_its_answers(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate") + request("GET", "/ping"))
    client.half_close()
    server.settle()
    server.open_gate()
    assert [answer.body for answer in cut_answers(client.read_to_end())] == [b"through", b"OK"]


def test_a_client_that_leaves_is_forgotten(server: HttpHarness, client: RawClient) -> None:
    client.ask("GET", "/ping")
    assert server.call(lambda: server.server.connection_count) == 1
    client.close()
    wait_until(lambda: server.call(lambda: server.server.connection_count) == 0)


def test_what_a_handler_began_is_finished_even_if_its_client_leaves(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate"))
    server.settle()
    client.reset()
    wait_until(lambda: server.call(lambda: server.server.connection_count) == 0)
    server.open_gate()
    wait_until(lambda: server.site.passed_gate_count == 1)


# Back-pressure.


def test_a_client_that_does_not_read_is_not_read_from(server: HttpHarness) -> None:
    client = server.connect(receive_buffer_bytes=4096)
    asked = request("GET", "/big") * 1_000_000
    sent = 0
    while (taken := client.send_what_fits(asked[sent:])) > 0:
        sent += taken
        server.settle()
    assert sent < len(asked)
    assert server.call(lambda: server.server.connection_count) == 1
    assert client.read_answer().text == BIG


def test_a_blocked_client_goes_on_where_it_was_when_it_reads_again(server: HttpHarness) -> None:
    client = server.connect(receive_buffer_bytes=4096)
    client.send(request("GET", "/big") * 30 + request("GET", "/ping"))
    server.settle()
    assert not server.site.seen
    assert [client.read_answer().text for _ in range(31)] == [BIG] * 30 + ["OK"]


# Deadlines.


def test_an_idle_connection_is_closed_after_a_while(server: HttpHarness, client: RawClient) -> None:
    client.ask("GET", "/ping")
    server.advance(ms=119_000)
    client.ask("GET", "/ping")
    server.advance(ms=119_000)
    client.ask("GET", "/ping")
    server.advance(ms=120_000)
    assert client.is_closed_by_server()


def test_blank_lines_do_not_keep_a_connection_open(server: HttpHarness, client: RawClient) -> None:
    client.ask("GET", "/ping")
    for _ in range(2):
        server.advance(ms=60_000)
        client.send(b"\r\n")
    server.advance(ms=1)
    assert client.is_closed_by_server()


def test_a_head_must_arrive_in_time_however_steadily_it_trickles(server: HttpHarness, client: RawClient) -> None:
    for byte in b"GET /ping":
        client.send(bytes([byte]))
        server.advance(ms=1_000)
    client.send(b" ")
    server.advance(ms=999)
    client.send(b"H")
    server.advance(ms=1)
    answer = client.read_answer()
    assert answer.error == (408, "REQUEST_TIMEOUT")
    assert answer.closes


def test_a_body_must_arrive_in_time(server: HttpHarness, client: RawClient) -> None:
    client.send(request("POST", "/echo", b"hello")[:-1])
    server.advance(ms=59_999)
    assert server.call(lambda: server.server.connection_count) == 1
    server.advance(ms=1)
    assert client.read_answer().error == (408, "REQUEST_TIMEOUT")
    assert not server.site.seen


def test_each_request_has_its_own_time(server: HttpHarness, client: RawClient) -> None:
    for _ in range(3):
        client.send(b"GET /ping HTT")
        server.advance(ms=9_000)
        client.send(b"P/1.1\r\nHost: x\r\n\r\n")
        assert client.read_answer().body == b"OK"
        client.send(request("POST", "/echo", b"hello")[:-1])
        server.advance(ms=59_000)
        client.send(b"o")
        assert client.read_answer().body == b"hello"


def test_a_handler_may_take_its_time(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate") + b"GET /pi")
    server.advance(ms=10_000_000)
    server.open_gate()
    assert client.read_answer().body == b"through"
    server.advance(ms=9_000)
    client.send(b"ng HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.read_answer().body == b"OK"
    server.advance(ms=120_000)
    assert client.is_closed_by_server()


@pytest.mark.parametrize(("connection", "patience_ms"), [("", 30_000), ("close", 5_000)])
def test_a_client_that_never_reads_its_answer_is_cut_off(
    server: HttpHarness, client: RawClient, connection: str, patience_ms: int
) -> None:
    client.send(request("GET", "/huge", connection=connection))
    server.advance(ms=patience_ms - 1)
    assert server.call(lambda: server.server.connection_count) == 1
    server.advance(ms=1)
    server.advance(ms=patience_ms)  # what the system may still have taken meanwhile counted as progress
    assert server.call(lambda: server.server.connection_count) == 0
    assert len(client.read_to_end()) < len(HUGE)


@pytest.mark.parametrize(("connection", "patience_ms"), [("", 30_000), ("close", 5_000)])
def test_a_client_that_reads_slowly_gets_its_whole_answer(
    server: HttpHarness, client: RawClient, connection: str, patience_ms: int
) -> None:
    client.send(request("GET", "/huge", connection=connection))
    received = b""
    for _ in range(15):
        received += client.read_exactly(1_000_000)
        server.advance(ms=patience_ms - 1)
    received += client.read_exactly(1_000_000)
    assert HUGE.startswith(received.partition(b"\r\n\r\n")[2])


def test_a_refused_client_that_goes_on_sending_is_listened_to_only_for_a_while(
    server: HttpHarness, client: RawClient
) -> None:
    client.send(request("POST", "/upload", content_length=str(MAX_UPLOAD_BYTES + 1)))
    assert client.read_answer().status == 413
    client.send(b"x" * 1000)
    server.advance(ms=4_999)
    assert server.call(lambda: server.server.connection_count) == 1
    client.send(b"x" * 1000)
    server.advance(ms=1)
    wait_until(lambda: server.call(lambda: server.server.connection_count) == 0)


# Other transports.


def test_a_client_of_a_unix_socket_has_no_address(start_server: StartServer) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the test's own folder may be too deep for a socket's path
        server = start_server(unix_path=f"{folder}/http.sock")
        assert server.connect().ask("GET", "/who").json == ["@", False, None]


@pytest.fixture
def tls_server(start_server: StartServer, tmp_path: Path) -> HttpHarness:
    pair = self_signed(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate_path, pair.key_path)
    return start_server(tls=context)


@pytest.fixture
def tls_client(tls_server: HttpHarness) -> RawClient:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return tls_server.connect(tls=context)


def test_a_handler_sees_that_a_client_speaks_tls(tls_client: RawClient) -> None:
    assert tls_client.ask("GET", "/who").json[1] is True
    assert tls_client.ask("POST", "/echo", b"hello").body == b"hello"


def test_a_refusal_reaches_a_tls_client_that_goes_on_sending(tls_server: HttpHarness, tls_client: RawClient) -> None:
    answer = tls_client.ask("POST", "/upload", b"x" * (2 * MAX_UPLOAD_BYTES))
    assert answer.error == (413, "BODY_TOO_BIG")
    tls_server.advance(ms=5_000)
    wait_until(lambda: tls_server.call(lambda: tls_server.server.connection_count) == 0)


def test_long_answers_to_a_tls_client_arrive_whole(tls_server: HttpHarness, tls_client: RawClient) -> None:
    tls_client.send(request("GET", "/big") * 10 + request("GET", "/ping", connection="close"))
    assert [tls_client.read_answer().text for _ in range(11)] == [BIG] * 10 + ["OK"]
    assert tls_client.is_closed_by_server()


def test_a_file_for_a_tls_client_arrives_whole(tls_server: HttpHarness, tls_client: RawClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 8192
    tls_server.site.file_path = tmp_path / "content"
    tls_server.site.file_path.write_bytes(content)
    tls_server.site.file_length = len(content) - FILE_POSITION
    tls_client.send(request("GET", "/file") + request("GET", "/ping", connection="close"))
    assert tls_client.read_answer().body == content[FILE_POSITION:]
    assert tls_client.read_answer().body == b"OK"
    assert tls_client.is_closed_by_server()
