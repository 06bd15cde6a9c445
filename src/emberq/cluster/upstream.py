"""Asking many daemons at once, reading their JSON, and the thread for what takes long.

**Failures.** A cluster is seldom whole. So an answer about it is what could be found out, with a warning for each
daemon that failed (`Findings`). There is no answer only when no daemon of one kind answered, or there was none to ask:

    ClusterError
    ├── UpstreamsFailedError   all nsqlookupds, or all nsqds, failed
    ├── NodeNotFoundError      no nsqd of the cluster has that address
    └── ChannelNotFoundError   no nsqd that has the topic has that channel

The texts are the reference's where it has one, because scripts look for them: a status other than 200 is told as
`got response 404 Not Found "…"`. Any other failure names the daemon: `Get "http://10.0.0.1:4151/stats": no answer …`.

**Secrets** of nsqds and nsqlookupds are shown to those that they are meant for (`Credentials`).

**JSON of daemons of any version.** What an older daemon leaves out, or any daemon says is null, has the value that says
nothing: 0, "", false, an empty list. What is there but of the wrong type makes the whole answer one not to be trusted:
MalformedDocumentError. Daemons before 1.0 wrap their answers: `{"status_code": 200, "status_txt": "OK", "data": {…}}`.

**Bounds.** Any client may register with an nsqlookupd, and so have an address asked or a list grow. So the answers to
one question are awaited for a time in all, and what did not answer by then has failed. An answer may have so many bytes
(MAX_ANSWER_BYTES), and so many lists and objects (MAX_CONTAINERS): an empty one takes two bytes of an answer and sixty
of memory.

**Background**, a thread with an event loop of its own, so that the event loop that serves requests never waits for a
long computation. Python runs one thread at a time. A thread that computes gives way to a waiting one after some
milliseconds, unless it is inside a single long call, such as the reading of a large JSON text. From this follows how to
use it:

- There is one such thread and no more. A request then waits for one turn of it, not for a turn of each.
- Questions with many large answers are asked from there (`ask`). To receive an answer takes several calls of the event
  loop. If that were the loop that serves, each call would wait for a turn while the answer before is computed with, and
  all requests would wait for all answers.
- Work comes in pieces, like the answers of many nsqds, each of which takes some ten milliseconds. Between two pieces
  the loop of the thread goes round once, so that answers are received in time.
"""

from __future__ import annotations

import asyncio
import enum
import json
import math
import re
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from emberq.base.address import parse_network, split_scheme
from emberq.base.task import LoopThread, new_event_loop
from emberq.base.text import quoted
from emberq.http.client import HttpClient, HttpQueryError, UnexpectedStatusError, bearer

Document = dict[str, Any]
T = TypeVar("T")
TargetT = TypeVar("TargetT")

MAX_CONCURRENT_QUERIES = 128
"""Each holds a connection and an answer of up to megabytes; a cluster of 80 nodes still is asked in one go."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Ten thousand topics with two channels each. To read it takes some tenths of a second, in which nothing else runs."""
MAX_CONTAINERS = 500_000
"""Lists and objects in one answer. A topic with two channels has some ten."""
MAX_TOLD_FAILURES = 20
MAX_NESTING = 100
"""Of lists and objects in an answer that is passed on; an honest one has three or four."""

_BACKGROUND_BYTES = 64 * 1024
"""Longer answers take some milliseconds to read, and many come at once: the background thread reads them."""

_HOST_AND_PORT = re.compile(r"[A-Za-z0-9._~%:\[\]-]+")
"""An address that nsqlookupd passes on was chosen by the nsqd that registered: it must not lead to another path."""


# Answers and failures


class DaemonKind(enum.StrEnum):
    """The two kinds of daemon that are asked."""

    LOOKUPD = "nsqlookupd"
    NSQD = "nsqd"


class ClusterError(Exception):
    """A question about the cluster that has no answer; the text says why."""


class UpstreamsFailedError(ClusterError):
    """No daemon of one kind answered."""

    def __init__(self, kind: DaemonKind, failures: Sequence[str]) -> None:
        super().__init__(f"failed to query any {kind}: " + "\n".join(_some(failures)))
        self.kind = kind
        self.failures = tuple(failures)


class NodeNotFoundError(ClusterError):
    """No nsqd of the cluster has that address."""


class ChannelNotFoundError(ClusterError):
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
        return warning_text(self.warnings)


def warning_text(warnings: Sequence[str]) -> str:
    """Warnings as nsqadmin words them, empty if there are none."""
    return f"WARNING: {'; '.join(_some(warnings))}" if warnings else ""


def _some(texts: Sequence[str]) -> Sequence[str]:
    """As many as a user reads: a thousand nsqds may fail at once."""
    if len(texts) <= MAX_TOLD_FAILURES:
        return texts
    return (*texts[:MAX_TOLD_FAILURES], f"and {len(texts) - MAX_TOLD_FAILURES} more")


# Secrets

ANY_HOST = "*"
_HOST_NAME = re.compile(r"[a-z0-9._-]+")


class Credentials:
    """Which secret each daemon is shown. Owned by the program that asks.

    An nsqlookupd names whatever address an nsqd registered with, so a hostile one could collect the secret for nsqds.
    It is shown to the nsqds that the user named, and of the others to those on `hosts`: a host as the nsqlookupd names
    it, `.example.com` for all below that name, a range of addresses (10.0.0.0/8), or `*` for all.
    """

    def __init__(
        self,
        *,
        nsqd: bytes = b"",
        lookupd: bytes = b"",
        nsqds: Iterable[str] = (),
        lookupds: Iterable[str] = (),
        hosts: Iterable[str] = (ANY_HOST,),
    ) -> None:
        """The secrets, empty if there are none, and the addresses that the user gave."""
        self.nsqd = nsqd
        self.lookupd = lookupd
        self._lookupds = frozenset(lookupds)
        self._nsqds = frozenset(nsqds)
        self._hosts = tuple(host.strip().lower().removesuffix(".") for host in hosts)
        self.strangers: frozenset[str] = frozenset()
        """Nsqlookupds that were not given at the start. They are shown nothing: a client may have set them."""

    def __repr__(self) -> str:
        return f"<Credentials for {sorted(self._lookupds | self._nsqds)} and hosts {list(self._hosts)}>"

    def for_daemon(self, address: str) -> bytes:
        """The secret for the HTTP API at this address; empty: none."""
        if address in self._lookupds:
            return self.lookupd
        return b"" if address in self.strangers else self.for_nsqd(address)

    def for_nsqd(self, address: str) -> bytes:
        """The secret for the nsqd whose HTTP API has this address; empty: none."""
        return self.nsqd if self.nsqd and (address in self._nsqds or self._is_trusted(address)) else b""

    def _is_trusted(self, address: str) -> bool:
        name = address.rpartition(":")[0].strip("[]").lower().removesuffix(".")
        return any(_is_on(name, host) for host in self._hosts)


def _is_on(name: str, host: str) -> bool:
    """Whether a host's name or address is what the user wrote."""
    if host in (ANY_HOST, name):
        return True
    if host.startswith("."):
        return _HOST_NAME.fullmatch(name) is not None and f".{name}".endswith(host)
    try:
        return ip_address(name) in parse_network(host)
    except ValueError:  # a NetworkError is one, too
        return False


# Asking


class Upstreams:
    """Puts questions to daemons. Owns the bound on how many at once; for use in one event loop."""

    def __init__(
        self,
        http: HttpClient,
        *,
        credentials: Credentials | None = None,
        background: Background | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._http = http
        self._patience_s = patience_s
        """For all answers to one question, which may have to wait for each other; None: no bound."""
        self.background = background or Background()
        """Reads long answers, and computes with them."""
        self._credentials = credentials or Credentials()
        self._free = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)

    async def ask_each(
        self, kind: DaemonKind, targets: Sequence[TargetT], ask: Callable[[TargetT], Awaitable[T]]
    ) -> Findings[list[T]]:
        """Ask all at once; the answers in the order of `targets`. UpstreamsFailedError if there is none."""
        ends_s = None if self._patience_s is None else asyncio.get_running_loop().time() + self._patience_s
        outcomes = await asyncio.gather(*(self._outcome(ask, target, ends_s) for target in targets))
        answers = [outcome for outcome in outcomes if not isinstance(outcome, UpstreamError)]
        failures = [str(outcome) for outcome in outcomes if isinstance(outcome, UpstreamError)]
        if not answers:
            raise UpstreamsFailedError(kind, failures)
        return Findings(answers, tuple(failures))

    async def _outcome(
        self, ask: Callable[[TargetT], Awaitable[T]], target: TargetT, ends_s: float | None
    ) -> T | UpstreamError:
        """What the daemon said, or how it failed: one that fails must not end the question to the others."""
        try:
            async with asyncio.timeout_at(ends_s):
                return await ask(target)
        except UpstreamError as failure:
            return failure
        except TimeoutError:
            return UpstreamError("some daemons could not be asked in time")

    async def get(self, address: str, path: str, read: Callable[[Document], T], **query: str) -> T:
        """What `read` makes of the JSON object that a daemon answers with; UpstreamError if there is none."""
        with _failures_of("Get", address, path):
            async with self._free:
                body = await self._http.get(_url(address, path, query), headers=self._headers(address))
            if len(body) < _BACKGROUND_BYTES:
                return _read(body, read)
            return await self.background.run(lambda: _read(body, read))

    async def post(self, address: str, path: str, body: bytes = b"", /, **query: str) -> bytes:
        """Have a daemon do something, and what it answers; UpstreamError if it did not."""
        with _failures_of("Post", address, path):
            async with self._free:
                return await self._http.post(_url(address, path, query), body, headers=self._headers(address))

    async def delete(self, address: str, path: str) -> bytes:
        """Have a daemon take something back, and what it answers; UpstreamError if it did not."""
        with _failures_of("Delete", address, path):
            async with self._free:
                return await self._http.delete(_url(address, path, {}), headers=self._headers(address))

    def _headers(self, address: str) -> dict[str, str]:
        return bearer(self._credentials.for_daemon(address))


@contextmanager
def _failures_of(method: str, address: str, path: str) -> Iterator[None]:
    try:
        yield
    except UnexpectedStatusError as refusal:
        raise UpstreamError(str(refusal), refusal=_message_in(refusal.body)) from refusal
    except (HttpQueryError, MalformedDocumentError) as failure:
        scheme, host_and_port = split_scheme(address)
        url = f"{scheme}://{host_and_port}{path}"
        raise UpstreamError(f"{method} {quoted(url)}: {failure}") from failure


def _read(body: bytes, read: Callable[[Document], T]) -> T:
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        raise HttpQueryError("the answer has too many parts")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as wrong:
        raise HttpQueryError("the answer is not JSON") from wrong
    return read(as_document(answer))


def _message_in(body: bytes) -> str:
    try:
        return text(as_document(json.loads(body)), "message")
    except (ValueError, RecursionError, MalformedDocumentError):
        return ""


def _url(address: str, path: str, query: dict[str, str]) -> str:
    scheme, host_and_port = split_scheme(address)
    if _HOST_AND_PORT.fullmatch(host_and_port) is None:
        raise UpstreamError(f"{quoted(address)} is not an address")
    url = f"{scheme}://{host_and_port}{path}"
    try:
        return url + (f"?{urlencode(query, quote_via=quote)}" if query else "")
    except UnicodeEncodeError as wrong:  # half a surrogate pair, which JSON can spell
        raise UpstreamError(f"{quoted(url)}: a name in it cannot be sent") from wrong


# Reading JSON


class MalformedDocumentError(Exception):
    """An answer that is JSON, but not what was asked for."""


def as_document(answer: Any) -> Document:
    """The object that the answer is, without an old daemon's wrapping."""
    if not isinstance(answer, dict):
        raise MalformedDocumentError("the answer is not a JSON object")
    wrapped = answer.get("data")
    return wrapped if isinstance(wrapped, dict) and "status_code" in answer else answer


def passable(document: Document) -> Document:
    """An answer that is shown as it is; MalformedDocumentError if it cannot be: JSON has no NaN, and stacks end."""
    level: list[Any] = [document]
    for _ in range(MAX_NESTING):
        inner = [value for holder in level for value in (holder.values() if isinstance(holder, dict) else holder)]
        if not all(math.isfinite(value) for value in inner if type(value) is float):
            raise MalformedDocumentError("the answer holds numbers that are none")
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return document
    raise MalformedDocumentError("the answer is nested too deeply")


_MAX_INTEGER = 1 << 63
"""All that daemons count has 64 bits. Larger numbers fit into no column, and into no float."""


def integer(document: Document, key: str) -> int:
    """A whole number; one written as `1e6` or `2.0` counts."""
    value = document.get(key)
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is int and -_MAX_INTEGER <= value < _MAX_INTEGER:  # a bool is none
        return value
    raise _wrong(key)


def number(document: Document, key: str) -> float:
    """Any number."""
    value = document.get(key)
    if value is None:
        return 0.0
    if type(value) is int:
        return float(integer(document, key))
    if type(value) is float:
        return value
    raise _wrong(key)


def text(document: Document, key: str) -> str:
    """A string."""
    value = document.get(key)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise _wrong(key)


def flag(document: Document, key: str) -> bool:
    """True or false."""
    value = document.get(key)
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    raise _wrong(key)


def texts(document: Document, key: str) -> list[str]:
    """A list of strings."""
    return _list_of(str, document, key)


def flags(document: Document, key: str) -> list[bool]:
    """A list of booleans."""
    return _list_of(bool, document, key)


def objects(document: Document, key: str) -> list[Document]:
    """A list of objects."""
    return _list_of(dict, document, key)


def _list_of(kind: type, document: Document, key: str) -> list[Any]:
    values = document.get(key)
    if values is None:
        return []
    if isinstance(values, list) and {kind}.issuperset(map(type, values)):
        return values
    raise _wrong(key)


def _wrong(key: str) -> MalformedDocumentError:
    return MalformedDocumentError(f"{key} in the answer is not of the expected type")


# What takes long


class Background:
    """A thread for what takes long. It begins when it is first needed.

    It ends with `close`, or when Python collects this object.
    """

    def __init__(self) -> None:
        self._loop = LoopThread("background", new_loop=new_event_loop)
        weakref.finalize(self, self._loop.end_soon)

    async def run(self, compute: Callable[[], T]) -> T:
        """What `compute` returns or raises.

        Work that was begun by `ask` computes one piece at a time, and several such works take turns. A call from any
        other event loop does not wait for a turn: it may be for a page, while the work has many large answers to read.
        """
        if not self._loop.is_current:
            return await self._loop.ask(lambda: _computed(compute))
        async with _turn.get():
            result = compute()
            await asyncio.sleep(0)
        return result

    async def ask(self, make_work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the work returns or raises, done by the event loop of the thread; that may call this, too."""
        return await self._loop.ask(make_work if self._loop.is_current else lambda: _in_turn(make_work))

    def close(self) -> None:
        """Drop what is not done yet."""
        self._loop.end()


_turn: ContextVar[asyncio.Lock] = ContextVar("_turn")
"""Held while a piece of a work is computed; each work has one."""


async def _in_turn(make_work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    _turn.set(asyncio.Lock())
    return await make_work()


async def _computed(compute: Callable[[], T]) -> T:
    return compute()
