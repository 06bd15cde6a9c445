"""The regular expression of `--topic-pattern`.

NSQ's is of RE2. With google-re2 (the extra `auth`) ours is, too. Without it Python's `re` reads the expression: it
takes all that is usual for topic names, and a few things that RE2 refuses, such as look-around. RE2 also promises time
linear in the text. That matters for expressions of strangers; this one is the operator's own.
"""

from __future__ import annotations

import re
from typing import Any

try:
    import re2
except ImportError:
    re2 = None


class PatternError(ValueError):
    """Not a regular expression."""


class TopicPattern:
    """A compiled expression, found anywhere in a name unless it anchors itself."""

    def __init__(self, text: str) -> None:
        self._compiled = _compiled_by_re(text) if re2 is None else _compiled_by_re2(text)

    def is_found_in(self, topic: str) -> bool:
        return self._compiled.search(topic) is not None


def _compiled_by_re2(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False  # RE2 would write them to standard error
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise PatternError(text) from error


def _compiled_by_re(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)  # RE2's \w and \d are ASCII, too
    except (re.error, OverflowError, RecursionError) as error:  # the last two: numbers and nesting beyond its limits
        raise PatternError(text) from error
