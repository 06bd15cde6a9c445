from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.clock import NS_PER_SECOND
from emberq.nsqd.auth.permission import (
    MAX_DECISIONS,
    MAX_REMEMBERED_LENGTH,
    MAX_TTL_SECONDS,
    Authorization,
    AuthPermission,
    InvalidAnswerError,
    parse_answer,
)
from tests.support.auth_server import entry, grant

NOW_NS = 5 * NS_PER_SECOND


def parsed(answer: Any) -> Authorization:
    return parse_answer(json.dumps(answer).encode(), now_ns=NOW_NS)


# What an answer says.


def test_an_answer_says_who_and_what_and_until_when() -> None:
    authorization = parsed(grant(entry(), entry(), ttl=60, identity="joe", identity_url="http://j"))
    assert authorization.identity == "joe"
    assert authorization.identity_url == "http://j"
    assert len(authorization.entries) == 2
    assert not authorization.is_expired(NOW_NS + 60 * NS_PER_SECOND - 1)
    assert authorization.is_expired(NOW_NS + 60 * NS_PER_SECOND)


@pytest.mark.parametrize("answer", [{"ttl": 1}, {"ttl": 1, "authorizations": None, "identity": None}])
def test_absent_and_null_fields_mean_empty(answer: Any) -> None:
    authorization = parsed(answer)
    assert authorization.entries == ()
    assert authorization.identity == ""


def test_keys_match_whatever_their_case() -> None:
    answer = {"TTL": 1, "Authorizations": [{"Topic": "t", "CHANNELS": [".*"], "Permissions": ["publish"]}]}
    assert parsed(answer).allows("t")


def test_unknown_fields_are_ignored() -> None:
    assert parsed(grant(entry() | {"note": 1}, note={})).allows("t")


def test_a_ttl_of_ages_is_a_long_ttl() -> None:
    assert parsed(grant(ttl=10**30)).expires_ns == NOW_NS + MAX_TTL_SECONDS * NS_PER_SECOND


def test_half_a_surrogate_pair_does_no_harm() -> None:
    assert parsed(grant(entry(topic="\ud800"), identity="a\udfff")).identity == "a\ufffd"


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (grant(entry(), ttl=0), "invalid TTL 0"),
        (grant(entry(), ttl=-5), "invalid TTL -5"),
        ({"authorizations": []}, "invalid TTL 0"),
        (None, "invalid TTL 0"),
        ({"ttl": 1.5}, "ttl is not a whole number"),
        ({"ttl": "60"}, "ttl is not a whole number"),
        ({"ttl": True}, "ttl is not a whole number"),
        ([], "the answer is not an object"),
        ("x", "the answer is not an object"),
        ({"ttl": 1, "identity": 5}, "identity is not a string"),
        ({"ttl": 1, "identity_url": []}, "identity_url is not a string"),
        ({"ttl": 1, "authorizations": {}}, "authorizations is not a list"),
        (grant(entry(), "x"), "authorizations[1] is not an object"),  # type: ignore[arg-type]
        (grant(entry(topic="(")), "authorizations[0].topic is not a regular expression"),
        (grant(entry(channels=["ok", "["])), "authorizations[0].channels is not a regular expression"),
        (grant(entry() | {"channels": "x"}), "authorizations[0].channels is not a list"),
        (grant(entry(permissions=["publish", "admin"])), "neither subscribe nor publish"),
        (grant(entry(permissions=["Publish"])), "neither subscribe nor publish"),
        (grant(entry() | {"permissions": "publish"}), "authorizations[0].permissions is not a list"),
        (grant(entry() | {"permissions": [1]}), "authorizations[0].permissions is not a string"),
    ],
)
def test_one_wrong_detail_makes_the_answer_invalid(answer: Any, complaint: str) -> None:
    with pytest.raises(InvalidAnswerError) as raised:
        parsed(answer)
    assert complaint in str(raised.value)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"<html>"])
def test_what_is_not_json_is_invalid(body: bytes) -> None:
    with pytest.raises(InvalidAnswerError, match="not JSON"):
        parse_answer(body, now_ns=0)


def test_a_complaint_does_not_repeat_what_the_server_said() -> None:
    for answer in (grant(entry(topic="s3cret(")), grant(entry(permissions=["s3cret"]))):
        with pytest.raises(InvalidAnswerError) as raised:
            parsed(answer)
        assert "s3cret" not in str(raised.value)


_VALUE = st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["", "(", ".*", "publish"]))
_NESTED = st.one_of(_VALUE, st.lists(_VALUE, max_size=2))
_ENTRY = st.dictionaries(st.sampled_from(["topic", "channels", "permissions"]), _NESTED)
_FIELDS = st.sampled_from(["ttl", "identity", "identity_url", "authorizations"])


@given(st.dictionaries(_FIELDS, st.one_of(_NESTED, st.lists(_ENTRY, max_size=2))))
def test_any_json_is_either_an_authorization_or_invalid(answer: Any) -> None:
    with contextlib.suppress(InvalidAnswerError):
        parsed(answer).allows("t", "c")


# What it allows.


def test_publishing_needs_publish_and_subscribing_needs_subscribe() -> None:
    publisher = parsed(grant(entry(permissions=["publish"])))
    assert publisher.allows("t")
    assert not publisher.allows("t", "c")
    subscriber = parsed(grant(entry(permissions=["subscribe"])))
    assert subscriber.allows("t", "c")
    assert not subscriber.allows("t")


def test_an_entry_without_permissions_allows_nothing() -> None:
    authorization = parsed(grant(entry(permissions=[])))
    assert not authorization.allows("t")
    assert not authorization.allows("t", "c")


def test_expressions_are_searched_for_in_the_names() -> None:
    authorization = parsed(grant(entry(topic="est", channels=["^c"])))
    assert authorization.allows("test", "c1")
    assert not authorization.allows("tset", "c1")
    assert not authorization.allows("test", "a_c")


def test_an_entry_for_one_channel_does_not_allow_to_publish() -> None:
    assert not parsed(grant(entry(channels=["c1"]))).allows("t")


def test_an_entry_without_channels_allows_nothing() -> None:
    authorization = parsed(grant(entry(channels=[])))
    assert not authorization.allows("t")
    assert not authorization.allows("t", "c")


def test_one_entry_has_to_allow_all_of_it() -> None:
    authorization = parsed(grant(entry(topic="^a$", permissions=["publish"]), entry(topic="^b$", channels=["c"])))
    assert authorization.allows("a")
    assert not authorization.allows("a", "c")
    assert authorization.allows("b", "c")
    assert not authorization.allows("b")


def test_the_permission_can_be_named() -> None:
    authorization = parsed(grant(entry(permissions=["publish"])))
    assert authorization.permits(AuthPermission.PUBLISH, topic="t", channel="")
    assert not authorization.permits(AuthPermission.SUBSCRIBE, topic="t", channel="")


def test_decisions_stay_the_same_however_many_are_asked_for() -> None:
    authorization = parsed(grant(entry(topic="7$")))
    for _ in range(2):
        for number in range(MAX_DECISIONS + 50):
            assert authorization.allows(f"t{number}") == (number % 10 == 7)


def test_a_name_longer_than_any_is_judged_like_others() -> None:
    authorization = parsed(grant(entry(topic="^a+$")))
    long = "a" * (MAX_REMEMBERED_LENGTH + 1)
    assert [authorization.allows(long), authorization.allows(long + "b")] == [True, False]


@pytest.mark.parametrize(
    ("answer", "covers"),
    [
        (grant(entry()), True),
        (grant(entry(topic="t"), entry()), True),
        (grant(), False),
        (grant(entry(topic="t")), False),
        (grant(entry(topic="")), False),
        (grant(entry(permissions=["publish"]), entry(permissions=["subscribe"])), False),
    ],
)
def test_everything_is_covered_by_one_entry_for_all_topics_with_both_permissions(answer: Any, covers: bool) -> None:
    assert parsed(answer).covers_everything is covers
