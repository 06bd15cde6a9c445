"""The answers of a server on one connection: where they end, and what is none.

- An answer is complete when its head says so: by a length, by chunks, or because answers of its kind have no body. If
  the head says nothing of the kind, the body lasts as long as the connection.
- An interim answer (`100 Continue`) is none; the real one follows.
- A connection that ends before the answer is complete, or bytes that are not HTTP, mean that there is no answer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from http import HTTPStatus

import httptools

NOT_HTTP = "the answer is not HTTP"
"""What a server of another protocol is told by."""


class AnswerReader(asyncio.Protocol, ABC):
    """A connection's end that reads. Its parser calls the `on_…` methods.

    A subclass says what becomes of an answer, in `_complete` and `_fail`; both may be called when nobody waits for one.
    Its `data_received` gives to `_parse` what is within its bounds.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._is_head_complete = False
        self._ends_with_connection = False
        """Nothing in the head so far says how long the body is."""

    @abstractmethod
    def _complete(self) -> None:
        """The answer is complete; the parser knows its status."""

    @abstractmethod
    def _fail(self, why: str) -> None:
        """There is no answer."""

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(NOT_HTTP)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - that it is lost is all that counts
        if self._is_head_complete and self._ends_with_connection:
            self._complete()
        else:
            self._fail("the connection was closed before the answer was complete")

    def on_message_begin(self) -> None:
        """Also called anew behind an interim answer."""
        self._is_head_complete = False
        self._ends_with_connection = True

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._is_head_complete = True

    def on_message_complete(self) -> None:
        self._is_head_complete = False
        if self._parser.get_status_code() >= HTTPStatus.OK:
            self._complete()
