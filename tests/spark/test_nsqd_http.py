from __future__ import annotations

import pickle

import pytest

from emberq.spark.error import NsqdRefusedError, NsqdUnavailableError
from emberq.spark.nsqd_http import MAX_DELAY_S, Access, HttpPeer, patiently
from emberq.spark.option import SinkSettings
from tests.spark.scripted_http import ScriptedHttp
from tests.support.threaded_http import Reply


def access(address: str, **options: str) -> Access:
    return SinkSettings.of({"nsqd": address, **options}).access


def peer(server: ScriptedHttp, **options: str) -> HttpPeer:
    return HttpPeer(server.address, access(server.address, **options))


def test_a_get_on_a_connection_that_was_closed_meanwhile_is_put_again() -> None:
    with ScriptedHttp(Reply({"n": 1}), Reply(drop=True), Reply({"n": 2})) as server:
        client = peer(server)
        assert client.get_json("/x") == {"n": 1}
        assert client.get_json("/x") == {"n": 2}
        assert len(server.received) == 3


def test_a_first_request_that_gets_no_answer_is_unavailability() -> None:
    with ScriptedHttp(Reply(drop=True)) as server, pytest.raises(NsqdUnavailableError, match=server.address):
        peer(server).get("/x")


def test_a_post_is_not_put_again_by_itself() -> None:
    with ScriptedHttp(Reply(), Reply(drop=True)) as server:
        client = peer(server)
        client.post("/x", {})
        with pytest.raises(NsqdUnavailableError):
            client.post("/x", {})
        assert len(server.received) == 2


def test_a_refusal_has_its_code_its_facts_and_a_remedy() -> None:
    with ScriptedHttp(
        Reply({"message": "OFFSET_GONE", "first_offset": 7}, status=410), Reply({"message": "UNAUTHORIZED"}, status=401)
    ) as server:
        client = peer(server)
        with pytest.raises(NsqdRefusedError) as gone:
            client.get("/x")
        assert (gone.value.status, gone.value.code, gone.value.facts) == (410, "OFFSET_GONE", {"first_offset": 7})
        again = pickle.loads(pickle.dumps(gone.value))
        assert (str(again), again.facts) == (str(gone.value), gone.value.facts)
        with pytest.raises(NsqdRefusedError, match='option "authSecret" is missing or wrong'):
            client.get("/x")


def test_a_server_in_trouble_is_unavailable_and_worth_another_try() -> None:
    with ScriptedHttp(Reply({"message": "EXITING"}, status=503), Reply(b"fine")) as server:
        client, delays = peer(server), list[float]()
        answer = patiently(lambda: client.get("/x"), timeout_s=60, sleep=delays.append)
        assert answer.body == b"fine"
        assert len(delays) == 1


def test_patience_ends_with_the_time() -> None:
    delays: list[float] = []

    def fail() -> None:
        raise NsqdUnavailableError("a:1", f"attempt {len(delays)}")

    with pytest.raises(NsqdUnavailableError, match="attempt 0"):
        patiently(fail, timeout_s=0.01, sleep=delays.append)
    assert max(delays, default=0) <= MAX_DELAY_S


def test_the_secret_travels_in_the_header_that_nsqd_looks_at() -> None:
    with ScriptedHttp(Reply()) as server:
        peer(server, authSecret="hush").get("/x", topic="a b")
        (request,) = server.received
        assert request.headers["Authorization"] == "Bearer hush"
        assert request.target == "/x?topic=a+b"


def test_an_nsqlookupd_is_shown_its_own_secret() -> None:
    with ScriptedHttp(Reply(), Reply({"message": "UNAUTHORIZED"}, status=401)) as server:
        asked = HttpPeer(
            server.address, access(server.address, authSecret="hush", lookupdSecret="hush2"), is_lookupd=True
        )
        asked.get("/nodes")
        with pytest.raises(NsqdRefusedError, match='option "lookupdSecret" is missing or wrong'):
            asked.get("/nodes")
        assert {request.headers["Authorization"] for request in server.received} == {"Bearer hush2"}
