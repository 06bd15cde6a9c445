"""Arguments that a request cannot do without."""

from __future__ import annotations

import pytest

from emberq.http.message import HttpError, parse_query, required


@pytest.mark.parametrize(("query", "value"), [("node=a%23b", "a#b"), ("node=", ""), ("x=1&node=$&node=2", "$")])
def test_an_argument_that_is_there_is_taken_as_it_is(query: str, value: str) -> None:
    assert required(parse_query(query), "node") == value


@pytest.mark.parametrize("query", ["", "NODE=x", "nodes=x"])
def test_an_argument_that_is_missing_is_named(query: str) -> None:
    with pytest.raises(HttpError, match=r"^MISSING_ARG_NODE$") as refused:
        required(parse_query(query), "node")
    assert refused.value.status == 400
