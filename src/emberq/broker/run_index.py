"""Which run holds a message, found by the message's id.

The ids of a batch are consecutive: they differ in their last digits alone. So its messages need no entries of their own
in a dictionary. A page has a place for each of the 16 ids that share all digits but the last, and the messages of a run
are put onto its pages by slices.

    id        3f9c0a1b2d4e57a  8
              the page         its place there, 0 to f

Messages whose ids are not consecutive, and those of short runs, have entries in a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emberq.broker.subscriber import Run, Subscriber
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX
from emberq.wire.frame import ID_BYTES

_PLACES: Final = 16
_PAGE_DIGITS: Final = ID_BYTES - 1
_NO_PLACE: Final = _PLACES
_PLACE_OF: Final = bytes(b"0123456789abcdef".find(letter) % (_PLACES + 1) for letter in range(256))
"""The place of an id that ends with this letter. One that ends no id of ours has _NO_PLACE, where no run ever is."""


class RunIndex:
    """The messages of a channel whose runs are found by id. Owned by its `InFlight`."""

    __slots__ = ("_pages", "_runs")

    def __init__(self) -> None:
        self._pages: dict[bytes, list[Run | None]] = {}
        """By the digits that the ids share. A page goes when the last run that had messages on it is done with."""
        self._runs: dict[bytes, Run] = {}
        """The runs of the messages that are on no page, by id."""

    def __repr__(self) -> str:
        return f"<RunIndex of {len(self._pages)} pages and {len(self._runs)} lone messages>"

    def add(self, message_id: bytes, run: Run) -> Run | None:
        """From here on this run holds the message; returns the run that held it before."""
        before = self._runs.get(message_id)
        self._runs[message_id] = run
        return before

    def add_consecutive(self, lines: bytes, first_id: int, run: Run) -> list[Run]:
        """From here on this run holds the messages that these FIN lines name; returns the runs that held any before.

        Their ids are consecutive from `first_id` on.
        """
        pages = self._pages
        before: list[Run] = []
        run.pages = used = []
        count = len(lines) // FIN_LINE_BYTES
        place = first_id % _PLACES
        index = 0
        while index < count:
            start = index * FIN_LINE_BYTES + len(FIN_PREFIX)
            digits = lines[start : start + _PAGE_DIGITS]
            page = pages.get(digits)
            if page is None:
                page = pages[digits] = [None] * (_PLACES + 1)
            share = min(count - index, _PLACES - place)
            if page.count(None) <= _PLACES:
                before += [other for other in page[place : place + share] if other is not None]
            page[place : place + share] = [run] * share
            used.append(digits)
            index += share
            place = 0
        return before

    def leave_pages(self, run: Run, ids: Sequence[bytes]) -> None:
        """These are all messages that the run still holds. They have entries from here on, and its pages go."""
        for message_id in ids:
            self.take(run.holder, message_id)
            self._runs[message_id] = run
        self.forget_pages(run)

    def forget_pages(self, run: Run) -> None:
        """The run is done with: its pages go, unless another one has messages there."""
        for digits in run.pages or ():
            page = self._pages.get(digits)
            if page is not None and page.count(None) > _PLACES:
                del self._pages[digits]
        run.pages = None

    def find(self, message_id: bytes) -> Run | None:
        """The run that holds this message."""
        page = self._pages.get(message_id[:_PAGE_DIGITS])
        run = page[_PLACE_OF[message_id[_PAGE_DIGITS]]] if page is not None else None
        return run if run is not None else self._runs.get(message_id)

    def take(self, holder: Subscriber, message_id: bytes) -> Run | None:
        """Remove a message that this consumer holds; returns its run."""
        run = self._runs.get(message_id)
        if run is not None:
            if run.holder is not holder:
                return None
            del self._runs[message_id]
            return run
        page = self._pages.get(message_id[:_PAGE_DIGITS])
        if page is None:
            return None
        place = _PLACE_OF[message_id[_PAGE_DIGITS]]
        run = page[place]
        if run is None or run.holder is not holder:
            return None
        page[place] = None
        return run

    def take_lines(self, holder: Subscriber, lines: bytes, position: int, taken: list[Run]) -> int:
        """Remove the messages that these FIN lines name from `position` on, up to the first that this consumer does not
        hold; returns where that stands. The run of each goes to `taken`.
        """
        pages, runs = self._pages, self._runs
        has_pages = bool(pages)
        for start in range(position + len(FIN_PREFIX), len(lines), FIN_LINE_BYTES):
            page = pages.get(lines[start : start + _PAGE_DIGITS]) if has_pages else None
            if page is not None:
                place = _PLACE_OF[lines[start + _PAGE_DIGITS]]
                run = page[place]
                if run is not None:
                    if run.holder is not holder:
                        return start - len(FIN_PREFIX)
                    page[place] = None
                    taken.append(run)
                    continue
            message_id = lines[start : start + ID_BYTES]
            run = runs.get(message_id)
            if run is None or run.holder is not holder:
                return start - len(FIN_PREFIX)
            del runs[message_id]
            taken.append(run)
        return len(lines)

    def clear(self) -> None:
        """Forget everything."""
        self._pages.clear()
        self._runs.clear()
