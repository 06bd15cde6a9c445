"""A hostile nsqlookupd: whatever it says of nodes, they are listed in order, or the answer is refused in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.cluster.topology import (
    ClusterNode,
    by_hostname,
    precedence,
    producer_of_info,
    producers_of_lookup,
    producers_of_nodes,
    united,
)
from emberq.cluster.upstream import Document, MalformedDocumentError, as_document
from tests.client.hostile_wire import values
from tests.support.examples import examples

versions = (
    st.sampled_from(["1.3.0", "1.3.0-rc.1", "v1.0.0+x", f"1.{'9' * 5000}.0", f"1.0.0-{'9' * 5000}", "\n"]) | values
)
nodes = st.dictionaries(
    st.sampled_from(["broadcast_address", "hostname", "tcp_port", "http_port", "topics", "tombstones"]),
    values | st.lists(st.text(max_size=3), max_size=3) | st.lists(st.booleans(), max_size=3),
    max_size=4,
)
documents = st.one_of(
    values,
    st.fixed_dictionaries(
        {"producers": st.lists(st.builds(lambda node, said: node | {"version": said}, nodes, versions), max_size=4)}
    ),
)
READERS: list[Callable[[Document], list[ClusterNode]]] = [
    producers_of_lookup,
    lambda document: producers_of_nodes(document, lookupd="127.0.0.1:4161"),
    lambda document: [producer_of_info(document, address="127.0.0.1:4151")],
]


@examples(300)
@given(documents, st.sampled_from(READERS))
def test_any_answer_is_listed_or_refused(answer: Any, read: Callable[[Document], list[ClusterNode]]) -> None:
    try:
        found = read(as_document(answer))
    except MalformedDocumentError:
        return
    listed = by_hostname(united(found))
    assert {node.tcp_address for node in listed} == {node.tcp_address for node in found}


@pytest.mark.parametrize("version", [f"1.{'9' * 5000}.0", f"1.0.0-{'9' * 5000}"])
def test_a_version_with_too_many_digits_is_old(version: str) -> None:
    assert precedence(version) <= precedence("1.0.0")
