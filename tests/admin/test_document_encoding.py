from __future__ import annotations

from typing import Any

import pytest

from emberq.admin.document import ROWS_PER_PIECE, encode_in_pieces
from emberq.http.message import encode_json


@pytest.mark.parametrize("count", [0, 1, ROWS_PER_PIECE, ROWS_PER_PIECE + 1, 3 * ROWS_PER_PIECE])
def test_a_document_in_pieces_is_the_same_document(count: int) -> None:
    rows = [{"name": f"<{number}>", "figures": [number, None]} for number in range(count)]
    document: dict[str, Any] = {"rows": rows, "<odd>": rows, "rate": 0.5, "nothing": None, "nested": {"rows": rows}}
    assert encode_in_pieces(document) == encode_json(document)


def test_an_empty_document() -> None:
    assert encode_in_pieces({}) == b"{}"


@pytest.mark.parametrize("row_count", [1, ROWS_PER_PIECE, ROWS_PER_PIECE + 1])
def test_long_lists_in_few_rows_are_taken_apart_too(row_count: int) -> None:
    topics = [{"topic": f"<{number}>"} for number in range(ROWS_PER_PIECE + 1)]
    document: dict[str, Any] = {"nodes": [{"topics": topics, "name": "<n>"}, None, {"topics": None}] * row_count}
    assert encode_in_pieces(document) == encode_json(document)
