"""Asking many daemons the same thing at once, and what to make of those that do not answer.

A cluster is seldom whole. So an answer about it is what could be found out, with a warning for each daemon that
failed (`Findings`). Only when nobody of one kind answered, or there was nobody to ask, is there no answer at all.

    ClusterError
    ├── UpstreamsFailed   all nsqlookupds, or all nsqds, failed
    ├── NodeNotFound      no nsqd of the cluster has that address
    └── ChannelNotFound   no nsqd that has the topic has that channel

The texts are the reference's where it has one, because scripts look for them: a status other than 200 is told as
`got response 404 Not Found "…"`. Any other failure names the daemon: `Get "http://10.0.0.1:4151/stats": no answer …`.
"""

from __future__ import annotations

import asyncio
import enum
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from emberq.base.http_query import HttpClient, HttpQueryError, UnexpectedStatus
from emberq.base.printable import quoted
from emberq.cluster.background import Background
from emberq.cluster.document import Document, MalformedDocument, as_document, text

MAX_CONCURRENT_QUERIES = 128
"""Each holds a connection and an answer of up to megabytes; a cluster of 80 nodes still is asked in one go."""

_BACKGROUND_BYTES = 64 * 1024
"""Longer answers take some milliseconds to read, and many come at once: in the background nobody waits for them."""

_HOST_AND_PORT = re.compile(r"[A-Za-z0-9._~%:\[\]-]+")
"""An address that nsqlookupd passes on was chosen by whoever registered: it must not lead to another path or user."""

T = TypeVar("T")
TargetT = TypeVar("TargetT")


class Kind(enum.StrEnum):
    """The two kinds of daemon that are asked."""

    LOOKUPD = "nsqlookupd"
    NSQD = "nsqd"


class ClusterError(Exception):
    """A question about the cluster that has no answer; the text says why."""


class UpstreamsFailed(ClusterError):
    """Nobody of one kind answered."""

    def __init__(self, kind: Kind, failures: Sequence[str]) -> None:
        super().__init__(f"failed to query any {kind}: " + "\n".join(failures))
        self.kind = kind
        self.failures = tuple(failures)


class NodeNotFound(ClusterError):
    """No nsqd of the cluster has that address."""


class ChannelNotFound(ClusterError):
    """No nsqd that has the topic has that channel."""


class UpstreamError(Exception):
    """One daemon failed; the text is fit for a warning."""

    def __init__(self, text: str, *, refusal: str = "") -> None:
        super().__init__(text)
        self.refusal = refusal
        """The message in the answer of a daemon that refused, such as `TOPIC_NOT_FOUND`."""


@dataclass(frozen=True, slots=True)
class Findings(Generic[T]):
    """What could be found out, and a warning for each daemon that did not contribute."""

    value: T
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The warnings as nsqadmin words them, empty if there are none."""
        return f"WARNING: {'; '.join(self.warnings)}" if self.warnings else ""


@dataclass(frozen=True, slots=True)
class Answer(Generic[TargetT, T]):
    """What one of those who were asked said."""

    target: TargetT
    value: T


class Upstreams:
    """Puts questions to daemons. Owns the bound on how many at once; for use in one event loop."""

    def __init__(self, http: HttpClient, *, secret: bytes = b"", background: Background | None = None) -> None:
        self._http = http
        self.background = background or Background()
        """Reads long answers; for whoever has to reckon with them, too."""
        self._headers = {"Authorization": f"Bearer {secret.decode('latin-1')}"} if secret else {}
        """For nsqds whose HTTP API is guarded."""
        self._free = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)

    async def ask_each(
        self, kind: Kind, targets: Sequence[TargetT], ask: Callable[[TargetT], Awaitable[T]]
    ) -> Findings[list[Answer[TargetT, T]]]:
        """Ask all at once; the answers in the order of `targets`. UpstreamsFailed if there is none."""
        outcomes = await asyncio.gather(*(self._outcome(ask, target) for target in targets))
        answers = []
        failures = []
        for target, outcome in zip(targets, outcomes, strict=True):
            if isinstance(outcome, UpstreamError):
                failures.append(str(outcome))
            else:
                answers.append(Answer(target, outcome))
        if not answers:
            raise UpstreamsFailed(kind, failures)
        return Findings(answers, tuple(failures))

    async def _outcome(self, ask: Callable[[TargetT], Awaitable[T]], target: TargetT) -> T | UpstreamError:
        """What the daemon said, or how it failed: one that fails must not end the question to the others."""
        try:
            return await ask(target)
        except UpstreamError as failure:
            return failure

    async def get(self, address: str, path: str, read: Callable[[Document], T], **query: str) -> T:
        """What `read` makes of the JSON object that a daemon answers with; UpstreamError if there is none."""
        url = _url(address, path, query)
        try:
            async with self._free:
                body = await self._http.get(url, headers=self._headers)
            if len(body) < _BACKGROUND_BYTES:
                return _read(body, read)
            return await self.background.run(lambda: _read(body, read))
        except UnexpectedStatus as refusal:
            raise UpstreamError(str(refusal), refusal=_message_in(refusal.body)) from refusal
        except (HttpQueryError, MalformedDocument) as failure:
            raise UpstreamError(f"Get {quoted(f'http://{address}{path}')}: {failure}") from failure

    async def post(self, address: str, path: str, body: bytes = b"", /, **query: str) -> bytes:
        """Have a daemon do something, and what it answers; UpstreamError if it did not."""
        url = _url(address, path, query)
        try:
            async with self._free:
                return await self._http.post(url, body, headers=self._headers)
        except UnexpectedStatus as refusal:
            raise UpstreamError(str(refusal), refusal=_message_in(refusal.body)) from refusal
        except HttpQueryError as failure:
            raise UpstreamError(f"Post {quoted(f'http://{address}{path}')}: {failure}") from failure


def _read(body: bytes, read: Callable[[Document], T]) -> T:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as wrong:
        raise HttpQueryError("the answer is not JSON") from wrong
    return read(as_document(answer))


def _message_in(body: bytes) -> str:
    try:
        return text(as_document(json.loads(body)), "message")
    except (ValueError, RecursionError, MalformedDocument):
        return ""


def _url(address: str, path: str, query: dict[str, str]) -> str:
    if _HOST_AND_PORT.fullmatch(address) is None:
        raise UpstreamError(f"{quoted(address)} is not an address")
    return f"http://{address}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
