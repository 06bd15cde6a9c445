"""Whether anything may be published at all."""

from __future__ import annotations


class PublishGate:
    """One for all topics of a broker; closed by whoever sees that messages could not be kept."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why it is closed; None while it is open."""
