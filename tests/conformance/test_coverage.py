"""Every row of the conformance table that is due has a test that says so.

A test names its rows by `@pytest.mark.conformance(...)`; here the markers of the whole test tree are read from the
source, so that the answer does not depend on which tests were collected.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE_ROWS = range(1, 281)

ROWS_DUE = {
    *range(1, 18),  # A: preamble, framing, names
    *range(18, 47),  # B: IDENTIFY
    *range(47, 70),  # C: publishing
    *range(70, 91),  # D: subscribing and flow control
    *range(91, 109),  # E: answering and timeouts
    *range(109, 113),  # F: heartbeats
    *range(113, 125),  # G: topics and channels
    *range(125, 143),  # H: persistence
    *range(143, 153),  # I: TLS and compression
    *range(153, 166),  # J: AUTH
    *range(166, 205),  # K: HTTP
    *range(205, 230),  # L: nsqlookupd
    *range(230, 253),  # M: nsqadmin
    255,  # N: nsq_to_http's headers
    *range(259, 264),  # N: the tools
    *range(264, 273),  # N: the client
    *range(273, 281),  # O: statsd, topology, stats
}
"""Rows of what is built so far."""


def marked_rows(source: Path) -> Iterator[int]:
    """The row numbers in the conformance markers of a test file."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "conformance":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{source}: rows are given as plain numbers"
                assert isinstance(argument.value, int), f"{source}: rows are given as plain numbers"
                yield argument.value


@functools.cache
def all_marked_rows() -> frozenset[int]:
    return frozenset(row for source in TESTS.rglob("test_*.py") for row in marked_rows(source))


def test_every_row_that_is_due_has_a_test() -> None:
    assert sorted(ROWS_DUE - all_marked_rows()) == []


def test_markers_name_rows_of_the_table() -> None:
    assert sorted(all_marked_rows() - set(TABLE_ROWS)) == []
