from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from emberq.cluster.upstream import (
    MalformedDocumentError,
    as_document,
    flag,
    flags,
    integer,
    number,
    objects,
    text,
    texts,
)

Reader = Callable[[dict[str, Any], str], Any]

READERS: list[tuple[Reader, Any, Any, Any]] = [
    (integer, 7, 0, "7"),
    (number, 0.5, 0.0, "0.5"),
    (text, "x", "", 1),
    (flag, True, False, 1),
    (texts, ["x"], [], [1]),
    (flags, [True], [], ["x"]),
    (objects, [{"x": 1}], [], ["x"]),
]
"""Each with a value, what stands for none, and a value of the wrong type."""


@pytest.mark.parametrize(("read", "value", "nothing", "wrong"), READERS)
def test_what_is_there_is_read(read: Reader, value: Any, nothing: Any, wrong: Any) -> None:
    assert read({"key": value}, "key") == value


@pytest.mark.parametrize(("read", "value", "nothing", "wrong"), READERS)
def test_what_an_old_daemon_leaves_out_or_says_is_null_says_nothing(
    read: Reader, value: Any, nothing: Any, wrong: Any
) -> None:
    assert read({}, "key") == nothing
    assert read({"key": None}, "key") == nothing


@pytest.mark.parametrize(("read", "value", "nothing", "wrong"), READERS)
def test_the_wrong_type_makes_the_answer_malformed(read: Reader, value: Any, nothing: Any, wrong: Any) -> None:
    with pytest.raises(MalformedDocumentError, match="key in the answer is not of the expected type"):
        read({"key": wrong}, "key")


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert integer({"key": 2.0}, "key") == 2
    with pytest.raises(MalformedDocumentError):
        integer({"key": 2.5}, "key")


def test_a_boolean_is_not_a_number() -> None:
    with pytest.raises(MalformedDocumentError):
        integer({"key": True}, "key")


def test_the_wrapping_of_daemons_before_1_0_is_taken_off() -> None:
    assert as_document({"status_code": 200, "status_txt": "OK", "data": {"topics": []}}) == {"topics": []}


def test_a_key_called_data_alone_is_no_wrapping() -> None:
    assert as_document({"data": {"x": 1}}) == {"data": {"x": 1}}


@pytest.mark.parametrize("answer", [[], "text", 1, None])
def test_an_answer_must_be_an_object(answer: Any) -> None:
    with pytest.raises(MalformedDocumentError, match="not a JSON object"):
        as_document(answer)
