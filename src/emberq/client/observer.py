"""Watching a client at work: for metrics, traces, or a log of one's own.

    class Slow(Observer):
        def handled(self, message: Message, source: ObservedChannel, *, duration_s: float) -> None:
            if duration_s > 1:
                log.warning("%s took %.1f s", message, duration_s)

    config = ClientConfig(observer=Slow())

One observer may serve any number of producers and consumers; override what you want to hear of. Without an observer
nothing here costs anything.

- All is called in the thread of the event loop, and holds it up for as long as it takes, with two exceptions:
  `requeued` is called in the thread that requeues, and `handling` surrounds the handler.
- What an observer raises is logged and changes nothing. `handling` is the exception again: it belongs to the handler.
  What the handler raised it cannot hold back, though: the message has failed.
- The methods are plain ones: a coroutine function would have to be awaited, and is refused by `ClientConfig`.
- NSQ's messages have no headers. What should travel from publisher to handler, a trace's context for one, needs an
  envelope that both have agreed on: `ClientConfig.envelope`. Then `message_headers` is asked for it.

`emberq.client.opentelemetry` is an observer that makes spans and metrics, `emberq.client.prometheus` one that keeps
metrics for a scrape.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, ParamSpec

from emberq.client.argument import is_coroutine_function
from emberq.client.error import ends_program
from emberq.client.message import Message

_P = ParamSpec("_P")

log = logging.getLogger(__name__)


class ObservedChannel(NamedTuple):
    """The topic and channel of a consumer."""

    topic: str
    channel: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.channel}"


class Publication(NamedTuple):
    """One PUB, DPUB or MPUB to one nsqd."""

    topic: str
    address: str
    message_count: int
    body_bytes: int
    """Of all its messages together."""
    is_enveloped: bool = False
    """Whether headers are a part of those bodies."""


class Observer:
    """Base class of observers. What is not overridden does nothing."""

    # Connections, of producers and consumers

    def connected(self, address: str) -> None:
        """An nsqd can be published to, or brings messages, from now on."""

    def disconnected(self, address: str, failure: BaseException | None) -> None:
        """The connection has ended, because of `failure`; None if the client closed it."""

    # Producers

    def message_headers(self, topic: str) -> Mapping[str, str]:  # noqa: ARG002 - for those who override it
        """Headers for a message that is about to be published in an envelope, asked for where `publish` was called."""
        return {}

    def published(self, publication: Publication, *, duration_s: float) -> None:
        """An nsqd has confirmed a publication, so long after it was sent."""

    def publish_failed(self, publication: Publication, error: BaseException, *, duration_s: float) -> None:
        """An nsqd has not confirmed a publication. If it is sent again, there or elsewhere, that is another one."""

    # Consumers

    def received(self, messages: Sequence[Message], source: ObservedChannel) -> None:
        """Messages have come, all of them by one connection."""

    def handling(self, message: Message, source: ObservedChannel) -> AbstractContextManager[object]:
        """Entered before the handler is called and left when it has ended, in the same context. Context variables that
        are set here are there in the handler, in a thread as well, but not in another process."""
        return nullcontext((message, source))

    def handled(self, message: Message, source: ObservedChannel, *, duration_s: float) -> None:
        """The handler has returned."""

    def failed(self, message: Message, source: ObservedChannel, error: BaseException, *, duration_s: float) -> None:
        """The handler raised, took too long (`HandlerTimeoutError`), or lost its process (`WorkerCrashedError`)."""

    def requeued(self, message: Message, source: ObservedChannel) -> None:
        """The message will come again: its handler failed, or `requeue` was called."""

    def gave_up(self, message: Message, source: ObservedChannel) -> None:
        """The message came too often and has been finished without being handled."""

    def answered_late(self, source: ObservedChannel, address: str) -> None:
        """An nsqd did not take the answer to a message, which had timed out there and is delivered again."""

    def backoff_changed(self, source: ObservedChannel, *, level: int, pause_s: float) -> None:
        """The consumer asks for nothing during `pause_s` because handlers fail; with level 0 all is well again."""


def check_observer(observer: object) -> None:
    """TypeError unless it is None, or an observer whose methods are plain ones."""
    if observer is None:
        return
    if not isinstance(observer, Observer):
        hint = f"; make one: {observer.__name__}()" if isinstance(observer, type) else ""
        raise TypeError(f"observer is not an object of a subclass of Observer{hint}")
    for name in vars(Observer):
        if not name.startswith("_") and is_coroutine_function(getattr(observer, name)):
            raise TypeError(f"observer: {name} is a coroutine function, which would never run; make it a plain method")


class Observation(NamedTuple):
    """An observer, and the consumer that it watches."""

    observer: Observer
    source: ObservedChannel


def ask_for_headers(observer: Observer, topic: str) -> Mapping[str, str]:
    """What an observer adds to a message; nothing if it fails."""
    try:
        return observer.message_headers(topic)
    except BaseException as error:
        if ends_program(error):
            raise
        log.exception("an observer failed in %s", type(observer).message_headers.__qualname__)
        return {}


def tell(hook: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call a hook of an observer. Whatever it does must not harm the client."""
    try:
        hook(*args, **kwargs)
    except BaseException as error:
        if ends_program(error):
            raise
        log.exception("an observer failed in %s", getattr(hook, "__qualname__", hook))
