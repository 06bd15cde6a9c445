"""The node as a whole over HTTP: its health (rows 122, 123), its sockets (row 203), its routes and its debugging."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import mpub_body


def block_disk(nsqd: NsqdHarness, topic: str) -> Path:
    """Let writes of a new topic's queue fail: a folder stands where its file should be."""
    nsqd.create_topic(topic)
    obstacle = nsqd.data_path / f"{topic}.diskqueue.000000.dat"
    obstacle.mkdir()
    return obstacle


def test_a_healthy_node_answers_a_ping(http: HttpClient) -> None:
    answer = http.get("/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert "x-nsq-content-type" not in answer.headers


@pytest.mark.conformance(122, 123)
@pytest.mark.parametrize(
    ("target", "body"),
    [("/pub?topic=t", b"x"), ("/mpub?topic=t", b"x\nx"), ("/mpub?topic=t&binary=1", mpub_body([b"x", b"x"]))],
)
@pytest.mark.nsqd(mem_queue_size=2)
def test_a_failing_disk_fails_publish_and_ping_until_it_writes_again(
    nsqd: NsqdHarness, http: HttpClient, target: str, body: bytes
) -> None:
    obstacle = block_disk(nsqd, "t")
    assert http.post("/mpub?topic=t", b"1\n2").text == "OK"
    assert http.get("/ping").text == "OK"

    assert http.post(target, body).error == (503, "EXITING")
    sick = http.get("/ping")
    assert sick.status == 500
    assert sick.text.startswith("NOK - ")
    assert len(sick.text) > len("NOK - ")
    assert http.get("/stats?format=json").json()["health"] == sick.text
    assert f"\nHealth: {sick.text}\n" in http.get("/stats").text

    obstacle.rmdir()
    assert http.post(target, body).text == "OK"
    assert (http.get("/ping").status, http.get("/ping").text) == (200, "OK")


@pytest.mark.conformance(203)
@pytest.mark.parametrize("transport", ["unix"])
def test_both_listeners_can_be_unix_sockets(nsqd: NsqdHarness, http: HttpClient) -> None:
    for address in (nsqd.nsqd.tcp_address, nsqd.http_address):
        assert isinstance(address, str)
        assert stat.S_ISSOCK(Path(address).stat().st_mode)
    assert http.post("/pub?topic=t", b"x").text == "OK"
    assert nsqd.consumer("t", "c", rdy=1).read_message().body == b"x"
    assert http.get("/ping").text == "OK"


@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("GET", "/PING", 301, "/ping"),
        ("GET", "//ping", 301, "/ping"),
        ("POST", "/pub/?topic=t", 307, "/pub?topic=t"),
        ("GET", "/debug/pprof", 301, "/debug/pprof/"),
    ],
)
def test_a_path_spelled_otherwise_is_redirected(
    http: HttpClient, method: str, target: str, status: int, location: str
) -> None:
    answer = http.request(method, target)
    assert (answer.status, answer.headers["location"]) == (status, location)


@pytest.mark.parametrize(
    ("path", "allow"),
    [("/pub", "OPTIONS, POST"), ("/config/log_level", "GET, OPTIONS, PUT"), ("/ping", "GET, OPTIONS")],
)
def test_options_tells_what_a_path_is_for(http: HttpClient, path: str, allow: str) -> None:
    answer = http.request("OPTIONS", path)
    assert (answer.status, answer.body, answer.headers["allow"]) == (200, b"", allow)


def test_get_does_not_imply_head(http: HttpClient) -> None:
    assert http.request("HEAD", "/ping").status == 405


def test_a_node_can_be_looked_into_while_it_works(http: HttpClient) -> None:
    assert "goroutine" in http.get("/debug/pprof/").text
    assert http.get("/debug/pprof/cmdline").status == 200
    assert "thread nsqd\n" in http.get("/debug/pprof/goroutine").text
    assert "thread nsqd\n" in http.get("/debug/pprof/threadcreate").text
    assert " tasks\n" in http.get("/debug/pprof/block").text
    assert http.get("/debug/pprof/symbol").text == http.post("/debug/pprof/symbol").text == "num_symbols: 0\n"
    assert "data_received" not in http.get("/debug/pprof/profile?seconds=0.05").text
    assert "still in use" in http.get("/debug/pprof/heap?seconds=0.05").text
    assert http.post("/debug/freememory").status == 200
    assert http.put("/debug/setblockrate?rate=1").status == 200
    assert http.put("/debug/setblockrate?rate=x").status == 400
