"""A publish that is not stored yet: its messages are on their way to the disk."""

from __future__ import annotations

from collections.abc import Callable

Told = Callable[[Exception | None], None]
"""Called with None when the messages are stored, or with the reason why they are not."""


class Pending:
    """Settled once, by the topic; whoever published may ask to be told."""

    __slots__ = ("_failure", "_is_settled", "_told")

    def __init__(self) -> None:
        self._is_settled = False
        self._failure: Exception | None = None
        self._told: Told | None = None

    def when_settled(self, told: Told) -> None:
        """Call `told` as soon as it is known what became of it, perhaps at once. One listener only."""
        if self._is_settled:
            told(self._failure)
        else:
            self._told = told

    def settle(self, failure: Exception | None) -> None:
        """The messages are stored, or never will be."""
        self._is_settled = True
        self._failure = failure
        if self._told is not None:
            self._told(failure)
            self._told = None
