"""What keys do.

The terminal sends a key as one character, or as an escape sequence; Escape itself is the sequence's first character
alone. `read_keys` tells them apart within what arrived at once, which is how terminals send a key.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from emberq.tools.top.row import Row, SortKey, arranged

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)

ESCAPE = "\x1b"
_UP = {"\x1b[A", "\x1bOA", "k"}
_DOWN = {"\x1b[B", "\x1bOB", "j"}
_PAGE_UP = {"\x1b[5~"}
_PAGE_DOWN = {"\x1b[6~", " "}
_HOME = {"\x1b[H", "\x1bOH", "\x1b[1~", "g"}
_ENTER = {"\r", "\n"}
_BACKSPACE = {"\x7f", "\x08"}
_QUIT = {"q", "Q", "\x03", "\x04"}

MAX_FILTER_CHARS = 64
"""The longest name there can be."""


def read_keys(text: str) -> list[str]:
    """The keys that were pressed, in their order."""
    return _KEY.findall(text)


class Outcome(enum.Enum):
    """What a key asks for."""

    NOTHING = enum.auto()
    REDRAW = enum.auto()
    QUIT = enum.auto()


@dataclass(slots=True, kw_only=True)
class Choices:
    """What the user has chosen to see. Owned by the screen; keys change it."""

    sort: SortKey = SortKey.DEPTH
    is_reversed: bool = False
    pattern: str = ""
    typing: bool = False
    """The filter is being typed: letters go there."""
    first_row: int = 0
    """The topmost row that is shown; whoever draws keeps it within what there is."""
    page_rows: int = 1
    """How far a page is: set by whoever draws."""

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """The rows to see, in their order."""
        return arranged(rows, sort=self.sort, is_reversed=self.is_reversed, pattern=self.pattern)

    def press(self, key: str) -> Outcome:
        """React to a key."""
        if self.typing:
            return self._type(key)
        if key in _QUIT:
            return Outcome.QUIT
        if key == "/":
            self.typing = True
        elif key == ESCAPE:
            self._filter("")
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif (sort := _SORT_BY_KEY.get(key)) is not None:
            self.sort = sort
            self.first_row = 0
        elif not self._scroll(key):
            return Outcome.NOTHING
        return Outcome.REDRAW

    def _type(self, key: str) -> Outcome:
        if key == "\x03":
            return Outcome.QUIT
        if key in _ENTER:
            self.typing = False
        elif key == ESCAPE:
            self.typing = False
            self._filter("")
        elif key in _BACKSPACE:
            self._filter(self.pattern[:-1])
        elif key.isprintable() and len(self.pattern) < MAX_FILTER_CHARS:
            self._filter(self.pattern + key)
        else:
            return Outcome.NOTHING
        return Outcome.REDRAW

    def _filter(self, pattern: str) -> None:
        self.pattern = pattern
        self.first_row = 0

    def _scroll(self, key: str) -> bool:
        if key in _UP:
            self.first_row -= 1
        elif key in _DOWN:
            self.first_row += 1
        elif key in _PAGE_UP:
            self.first_row -= self.page_rows
        elif key in _PAGE_DOWN:
            self.first_row += self.page_rows
        elif key in _HOME:
            self.first_row = 0
        else:
            return False
        self.first_row = max(self.first_row, 0)
        return True


_SORT_BY_KEY = {sort.key: sort for sort in SortKey}
