"""Regular expressions of authorization servers, in their own dialect.

The servers are written for RE2, so RE2 it is, through Google's binding: what it refuses (look-around, references back)
must be refused here too, and its time is linear in the text whatever the expression, so that an unlucky one cannot stop
the daemon. It is compiled once for all connections: those of one service hold the same few.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

try:
    import re2
except ImportError:  # the extra `auth` is not installed, and whoever needs it is told so at the start
    re2 = None

MAX_COMPILED = 1024
"""Distinct expressions kept compiled: a kilobyte or so each. If there are more, some are compiled again."""

IS_AVAILABLE = re2 is not None


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False  # RE2 would write them to standard error
    options.never_capture = True  # only whether it matches matters, and that is found faster so
    return options


_OPTIONS = _options() if IS_AVAILABLE else None


class PatternError(ValueError):
    """Not a regular expression."""


class Pattern:
    """A compiled expression, found anywhere in a text unless it anchors itself."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._compiled: Any = re2.compile(text, _OPTIONS)
        except re2.error as wrong:
            raise PatternError("not a regular expression of RE2") from wrong

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def found_in(self, text: str) -> bool:
        return self._compiled.search(text) is not None


compile_pattern = lru_cache(maxsize=MAX_COMPILED)(Pattern)
"""The pattern of a text, or PatternError."""
