"""A stream that says it is a terminal, and remembers what was written."""

from __future__ import annotations

import io


class Screen(io.TextIOWrapper):
    """Text and bytes, as standard output takes them."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        """All that was written so far."""
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()
