"""On which line of a TOML document each key stands, which tomllib does not tell.

A document is a row of statements: `[a.b]`, or `key = value`, where a value may go on over several lines. tomllib itself
says where a statement ends: what has begun and is not whole yet does not parse. So this holds for every TOML that
tomllib reads, and knows no more of its grammar than that comments begin with # and tables with [.

Keys within `{ ... }` have the line of the key before it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from emberq.spark.pipeline.problem import KeyPath


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and key of a document that tomllib has read, counted from 1."""
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, statement in _statements(text):
        document = tomllib.loads(statement)
        path = _only_path(document, is_table=statement.lstrip().startswith("["))
        if statement.lstrip().startswith("["):
            table = path
            found.setdefault(table, number)
        else:
            for length in range(1, len(path) + 1):
                found.setdefault(table + path[:length], number)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement with the line on which it begins."""
    pending, begun_at = "", 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not pending:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begun_at = number
        pending += line
        if _is_whole(pending):
            yield begun_at, pending
            pending = ""


def _is_whole(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _only_path(document: dict[str, Any], *, is_table: bool) -> KeyPath:
    """The keys that lead to what one statement defines: for `a.b = 1` a and b, and no further for `a = {b = 1}`.

    The two look the same when they are read; a key within braces then has the same line, which is right for it too.
    """
    path: KeyPath = ()
    value: Any = document
    while isinstance(value, dict) and value:
        key = next(iter(value))
        path += (key,)
        value = value[key]
        if isinstance(value, list) and is_table:
            value = value[0]
    return path
