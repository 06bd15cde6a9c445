"""GET /stats and GET /info over a socket (rows 187-195, 204, 277-279)."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import emberq
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient


def stats(http: HttpClient, query: str = "") -> dict[str, Any]:
    """The JSON of /stats."""
    answer = http.get(f"/stats?format=json{query}")
    assert answer.status == 200
    shown: dict[str, Any] = answer.json()
    return shown


def only_channel(shown: dict[str, Any]) -> dict[str, Any]:
    (topic,) = shown["topics"]
    (channel,) = topic["channels"]
    found: dict[str, Any] = channel
    return found


@pytest.mark.conformance(187)
def test_a_consumer_is_shown_with_its_channel(nsqd: NsqdHarness, http: HttpClient) -> None:
    consumer = nsqd.consumer("t", "c", client_id="worker", hostname="h", user_agent="a/1", topology_zone="z")
    shown = stats(http)
    channel = only_channel(shown)
    assert (channel["client_count"], len(channel["clients"])) == (1, 1)
    (client,) = channel["clients"]
    name = consumer.socket.getsockname()
    address = "@" if isinstance(name, str) else f"{name[0]}:{name[1]}"
    assert {key: client[key] for key in ("client_id", "hostname", "version", "user_agent", "topology_zone")} == {
        "client_id": "worker",
        "hostname": "h",
        "version": "V2",
        "user_agent": "a/1",
        "topology_zone": "z",
    }
    assert (client["remote_address"], client["state"], client["ready_count"]) == (address, 3, 0)
    assert (client["tls"], client["tls_version"], client["deflate"], client["snappy"]) == (False, "", False, False)
    assert "pub_counts" not in client
    assert shown["memory"]["heap_objects"] > 0


@pytest.mark.conformance(188)
@pytest.mark.parametrize("word", ["false", "0"])
def test_clients_can_be_left_out(nsqd: NsqdHarness, http: HttpClient, word: str) -> None:
    nsqd.consumer("t", "c").pub("t", b"x")
    shown = stats(http, f"&include_clients={word}")
    channel = only_channel(shown)
    assert (channel["clients"], channel["client_count"], shown["producers"]) == (None, 1, None)


@pytest.mark.conformance(189)
def test_memory_can_be_left_out(http: HttpClient) -> None:
    assert "memory" not in stats(http, "&include_mem=false")
    assert "memory" in stats(http, "&include_mem=maybe")
    assert "Memory:" not in http.get("/stats?include_mem=0").text


@pytest.mark.conformance(190)
def test_topics_and_channels_can_be_chosen(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    nsqd.create_channel("t", "d")
    nsqd.create_channel("u", "e")
    assert [topic["topic_name"] for topic in stats(http)["topics"]] == ["t", "u"]
    assert [topic["topic_name"] for topic in stats(http, "&topic=u")["topics"]] == ["u"]
    assert only_channel(stats(http, "&topic=t&channel=d"))["channel_name"] == "d"
    assert only_channel(stats(http, "&channel=e"))["channel_name"] == "e"
    assert stats(http, "&topic=t&channel=none")["topics"] == []
    missed = stats(http, "&topic=none")
    assert (missed["topics"], missed["producers"]) == (None, None)


@pytest.mark.conformance(191)
def test_a_fresh_nsqd_has_nothing_to_show(nsqd: NsqdHarness, http: HttpClient) -> None:
    answer = http.get("/stats?format=json")
    start_time_s = nsqd.nsqd.start_time_s
    start = f'{{"version":"{emberq.NSQ_VERSION}","health":"OK","start_time":{start_time_s},"topics":[],"memory":{{'
    assert answer.text.startswith(start)
    assert answer.text.endswith('},"producers":null}')
    assert answer.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.conformance(192)
@pytest.mark.parametrize("query", ["", "?format=text", "?format=xml"])
def test_people_get_text(nsqd: NsqdHarness, http: HttpClient, query: str) -> None:
    nsqd.create_channel("t", "c")
    answer = http.get(f"/stats{query}")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.text.startswith(f"nsqd v{emberq.NSQ_VERSION} (built w/python")
    assert "\nHealth: OK\n" in answer.text
    assert "\n   [t              ] depth: 0 " in answer.text
    assert "\n      [c                        ] depth: 0 " in answer.text
    assert answer.text.endswith("\nProducers: None\n")


@pytest.mark.conformance(192)
def test_text_shows_who_is_connected_and_for_how_long(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.consumer("t", "c", rdy=1, hostname="h", user_agent="a/1")
    producer = nsqd.connect()
    producer.identify(hostname="p", user_agent="b/2")
    producer.mpub("t", [b"x", b"x"])
    nsqd.advance(ms=5000)
    shown = http.get("/stats").text
    assert "a/1" in shown
    assert "uptime 5s\n" in shown
    assert " state: 3 inflt: 1    rdy: 1    fin: 0        re-q: 0        msgs: 1        connected: 5s\n" in shown
    assert "] msgs: 2        topics: t=2 connected: 5s\n" in shown


@pytest.mark.conformance(193)
def test_a_wrong_method_is_refused(http: HttpClient) -> None:
    answer = http.post("/stats")
    assert answer.error == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, OPTIONS"


@pytest.mark.conformance(194)
def test_an_unknown_path_is_not_found(http: HttpClient) -> None:
    assert http.get("/not_found").error == (404, "NOT_FOUND")


@pytest.mark.conformance(172)
@pytest.mark.parametrize("query", ["format=json;x", "topic=%zz"])
def test_a_malformed_query_is_refused(http: HttpClient, query: str) -> None:
    assert http.get(f"/stats?{query}").error == (400, "INVALID_REQUEST")


@pytest.mark.conformance(195)
def test_info_tells_who_it_is(nsqd: NsqdHarness, http: HttpClient) -> None:
    shown = http.get("/info").json()
    ports = (-1, -1) if isinstance(nsqd.nsqd.tcp_address, str) else (nsqd.nsqd.tcp_port, nsqd.nsqd.http_port)
    assert (shown["version"], shown["hostname"]) == (emberq.NSQ_VERSION, socket.gethostname())
    assert (shown["tcp_port"], shown["http_port"]) == ports
    assert shown["start_time"] == nsqd.nsqd.start_time_s


@pytest.mark.conformance(204)
def test_statistics_do_not_get_in_the_way_of_publishing(nsqd: NsqdHarness, http: HttpClient) -> None:
    consumer = nsqd.consumer("t", "c", rdy=25)
    with ThreadPoolExecutor(max_workers=10) as pool:
        published = [pool.submit(http.post, "/pub?topic=t", b"x") for _ in range(25)]
        looked_at = [pool.submit(stats, http) for _ in range(25)]
        assert [answer.result().text for answer in published] == ["OK"] * 25
        assert all(shown.result()["health"] == "OK" for shown in looked_at)
    assert len(consumer.read_messages(25)) == 25
    channel = only_channel(stats(http))
    assert (channel["in_flight_count"], channel["clients"][0]["in_flight_count"]) == (25, 25)


@pytest.mark.conformance(277)
def test_deliveries_are_counted_by_locality_where_there_are_any(nsqd: NsqdHarness, http: HttpClient) -> None:
    consumer = nsqd.consumer("t", "c", rdy=2)
    http.post("/mpub?topic=t", b"1\n2")
    consumer.read_messages(2)
    channel = only_channel(stats(http))
    assert channel["global_msg_count"] == 2
    assert "zone_local_msg_count" not in channel
    assert "region_local_msg_count" not in channel


@pytest.mark.conformance(278)
def test_who_publishes_and_subscribes_is_shown_twice(nsqd: NsqdHarness, http: HttpClient) -> None:
    both = nsqd.consumer("t", "c", client_id="both")
    both.pub("u", b"x")
    shown = stats(http)
    assert [producer["client_id"] for producer in shown["producers"]] == ["both"]
    (client,) = shown["topics"][0]["channels"][0]["clients"]
    assert client["client_id"] == "both"
    assert client["pub_counts"] == shown["producers"][0]["pub_counts"] == [{"topic": "u", "count": 1}]


@pytest.mark.conformance(279)
def test_a_topic_filter_narrows_what_producers_published(nsqd: NsqdHarness, http: HttpClient) -> None:
    for client_id, topics in (("a", ["t", "u", "u"]), ("b", ["u"])):
        producer = nsqd.connect()
        producer.identify(client_id=client_id)
        for topic in topics:
            producer.pub(topic, b"x")
    producers = {client["client_id"]: client.get("pub_counts") for client in stats(http, "&topic=t")["producers"]}
    assert producers == {"a": [{"topic": "t", "count": 1}], "b": None}
    producers = {client["client_id"]: client.get("pub_counts") for client in stats(http)["producers"]}
    assert producers == {
        "a": [{"topic": "t", "count": 1}, {"topic": "u", "count": 2}],
        "b": [{"topic": "u", "count": 1}],
    }


@pytest.mark.nsqd(e2e_processing_latency_percentile=(0.95, 1.0))
def test_latencies_from_publish_to_finish_are_shown(nsqd: NsqdHarness, http: HttpClient) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    http.post("/pub?topic=t", b"x")
    message = consumer.read_message()
    nsqd.advance(ms=250)
    consumer.fin(message)
    assert consumer.messages_until_now() == []
    shown = stats(http, "&topic=t")
    channel = only_channel(shown)
    assert channel["e2e_processing_latency"] == shown["topics"][0]["e2e_processing_latency"]
    assert channel["e2e_processing_latency"]["count"] == 1
    percentiles = channel["e2e_processing_latency"]["percentiles"]
    assert [entry["quantile"] for entry in percentiles] == [1, 0.95]
    assert [entry["value"] for entry in percentiles] == pytest.approx([250_000_000] * 2, rel=0.01)
    text = http.get("/stats?topic=t").text
    assert len(re.findall(r"e2e%: 2[45]\d\.\dms, 2[45]\d\.\dms\n", text)) == 2


def test_a_client_cannot_break_out_of_the_answer(nsqd: NsqdHarness, http: HttpClient) -> None:
    agent = '</script>&"\u2028\n\ud800'
    nsqd.consumer("t", "c", user_agent=agent)
    answer = http.get("/stats?format=json")
    assert not any(char in answer.text for char in "<>&\u2028\n")
    (client,) = only_channel(answer.json())["clients"]
    assert client["user_agent"][:-1] == agent[:-1]  # half a surrogate pair cannot be written
