"""Numbers as NSQ writes them."""

from __future__ import annotations

import json

import pytest

from emberq.nsqd.api.node import shortest


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (0.99, "0.99"), (0.5, "0.5"), (100.0, "100")])
def test_whole_numbers_have_no_fraction(value: float, text: str) -> None:
    assert json.dumps(shortest(value)) == text
