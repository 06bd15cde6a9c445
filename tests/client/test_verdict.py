"""What the return value of a user's function means, wherever the function runs."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from emberq.base.clock import SystemClock
from emberq.client.argument import check_callable, describe, is_coroutine_function
from emberq.client.config import ConsumerConfig, HandlersIn
from emberq.client.consumer import Consumer
from emberq.client.error import BadReturnValueError, HandlerDeclinedError, HandlerTimeoutError
from emberq.client.handler import HandlerPool, Inbox
from emberq.client.message import Message
from emberq.client.observer import Observation, ObservedChannel, Observer
from emberq.client.verdict import check_returned
from emberq.client.worker import make_slots
from tests.client.test_handler_inbox import messages
from tests.client.test_message import Recorder
from tests.support import process_handlers
from tests.support.waiting import until

FINISHED = [("FIN", [b"x"])]
REQUEUED = [("REQ", b"x", None, True)]


class CallableObject:
    async def __call__(self, message: Message) -> None:
        pass


async def coroutine(message: Message) -> None:
    pass


def plain(message: Message) -> None:
    pass


async def handle_all(
    handler: Any,
    *bodies: bytes,
    expected: list[Any],
    handlers_in: HandlersIn = HandlersIn.THREADS,
    timeout_s: float | None = None,
    **options: Any,
) -> None:
    """Let a pool with room for one handler handle messages, and see how they are answered."""

    inbox, source = Inbox(SystemClock()), Recorder()
    slots = make_slots(handler, handlers_in, count=1, timeout_s=timeout_s)
    pool = HandlerPool(slots, inbox, clock=SystemClock(), **options)
    pool.start()
    inbox.put(messages(*bodies, source=source))
    await until(lambda: len(source.answers) >= len(expected), show=lambda: source.answers)
    await pool.stop()
    assert source.answers == expected
    gc.collect()  # a coroutine that was dropped would be complained about now


# Awaitables


class Work:
    """Work that takes a turn of the event loop, and ways to hand it over without a coroutine function."""

    def __init__(self, result: Any = None) -> None:
        self.done: list[bytes] = []
        self._result = result

    async def coroutine(self, message: Message) -> Any:
        await asyncio.sleep(0)
        self.done.append(message.body)
        return self._result

    def behind_a_decorator(self, message: Message) -> Awaitable[Any]:
        return self.coroutine(message)

    async def with_a_forgotten_await(self, message: Message) -> Any:
        return self.coroutine(message)


WAYS: list[Callable[[Work], Any]] = [
    lambda work: lambda message: work.coroutine(message),
    lambda work: work.behind_a_decorator,
    lambda work: functools.partial(work.behind_a_decorator),
    lambda work: work.with_a_forgotten_await,
]


@pytest.mark.parametrize("timeout_s", [None, 60.0])
@pytest.mark.parametrize("way", WAYS)
async def test_what_a_handler_returns_is_awaited_before_its_message_is_finished(
    way: Callable[[Work], Any], timeout_s: float | None
) -> None:
    work = Work()
    await handle_all(way(work), b"x", expected=FINISHED, timeout_s=timeout_s)
    assert work.done == [b"x"]


@pytest.mark.parametrize("way", WAYS)
async def test_what_comes_of_the_awaited_counts(way: Callable[[Work], Any]) -> None:
    await handle_all(way(Work(result=False)), b"x", expected=REQUEUED)


async def test_an_awaitable_that_is_awaited_for_too_long_has_timed_out() -> None:
    failures: list[type[BaseException]] = []

    def policy(message: Message, error: BaseException) -> None:
        failures.append(type(error))

    def handle(message: Message) -> Any:
        return asyncio.sleep(600)

    await handle_all(handle, b"x", expected=REQUEUED, timeout_s=0.05, retry_delay_s=policy)
    assert failures == [HandlerTimeoutError]


async def test_an_awaitable_is_awaited_even_if_the_message_has_been_answered() -> None:
    work = Work(result="ignored, because there is nothing to decide any more")

    def handle(message: Message) -> Any:
        message.finish()
        return work.coroutine(message)

    await handle_all(handle, b"x", b"y", expected=[("FIN", [b"x"]), ("FIN", [b"y"])])
    assert work.done[0] == b"x"


async def test_an_awaitable_that_never_comes_to_anything_else_is_refused() -> None:
    class Forever:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            return Forever()

    await handle_all(lambda message: Forever(), b"x", expected=REQUEUED)


# Values


@pytest.mark.parametrize("value", [None, True])
async def test_none_and_true_finish(value: Any) -> None:
    await handle_all(lambda message: value, b"x", expected=FINISHED)


async def test_false_requeues_as_a_failure_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: Message) -> bool:
        return False

    await handle_all(handle, b"x", expected=[("REQ", b"x", 7.0, True)], retry_delay_s=lambda message, error: 7)
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert "returned False for message 0000" in record.getMessage()


@pytest.mark.parametrize("value", [0, 1, "", "done", b"x" * 1000, {}, [], object(), iter([]), float("nan")])
@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_any_other_value_requeues_and_says_what_to_return(
    value: Any, is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Message) -> Any:
        return value

    await handle_all(handle if is_coroutine else lambda message: value, b"x", expected=REQUEUED)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    assert "return None or True when the message is done" in record.getMessage()
    assert len(record.getMessage()) < 400


async def test_what_a_handler_returns_does_not_matter_once_it_has_answered(caplog: pytest.LogCaptureFixture) -> None:
    def handle(message: Message) -> str:
        message.finish()
        return "whatever"

    await handle_all(handle, b"x", expected=FINISHED)
    assert not caplog.records


@pytest.mark.parametrize(
    ("body", "expected"), [(b"None", FINISHED), (b"True", FINISHED), (b"False", REQUEUED), (b"7", REQUEUED)]
)
async def test_a_handler_in_a_process_is_judged_likewise(body: bytes, expected: list[Any]) -> None:
    answers = [(kind, [body] if isinstance(ids, list) else body, *rest) for kind, ids, *rest in expected]
    await handle_all(process_handlers.evaluate, body, expected=answers, handlers_in=HandlersIn.PROCESSES)


async def test_what_cannot_be_awaited_in_a_process_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    await handle_all(process_handlers.promise, b"x", expected=REQUEUED, handlers_in=HandlersIn.PROCESSES)
    assert "a process has no event loop" in caplog.text


def test_the_text_of_a_value_that_has_none_is_its_type() -> None:
    class Silent(str):
        __slots__ = ()

        def __repr__(self) -> str:
            raise ValueError("no text")

    assert describe(Silent("x")).endswith("Silent")
    with pytest.raises(BadReturnValueError):
        check_returned(Silent("x"))


async def test_an_observer_hears_of_a_refused_message() -> None:
    heard: list[type[BaseException]] = []

    class Listener(Observer):
        def failed(self, message: Message, source: ObservedChannel, error: BaseException, *, duration_s: float) -> None:
            heard.append(type(error))

    observation = Observation(Listener(), ObservedChannel("t", "c"))
    await handle_all(lambda message: False, b"x", expected=REQUEUED, observation=observation)
    await handle_all(lambda message: 7, b"x", expected=REQUEUED, observation=observation)
    assert heard == [HandlerDeclinedError, BadReturnValueError]


async def test_an_observer_cannot_make_a_failure_a_success() -> None:
    class Swallowing(Observer):
        def handling(self, message: Message, source: ObservedChannel) -> Any:
            class Context:
                def __enter__(self) -> None: ...

                def __exit__(self, *_raised: object) -> bool:
                    return True

            return Context()

    def handle(message: Message) -> None:
        raise ValueError("as told")

    observation = Observation(Swallowing(), ObservedChannel("t", "c"))
    await handle_all(handle, b"x", expected=REQUEUED, observation=observation)


# Whatever is raised


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), StopIteration(), Mute()])
@pytest.mark.parametrize("is_coroutine", [True, False])
@pytest.mark.parametrize("timeout_s", [None, 60.0])
async def test_whatever_a_handler_raises_the_next_message_is_handled(
    error: BaseException, is_coroutine: bool, timeout_s: float | None
) -> None:
    def handle(message: Message) -> None:
        if message.body == b"x":
            raise error

    async def handle_in_loop(message: Message) -> None:
        handle(message)

    handler = handle_in_loop if is_coroutine else handle
    await handle_all(handler, b"x", b"y", expected=[*REQUEUED, ("FIN", [b"y"])], timeout_s=timeout_s)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_a_program_goes_on_to_the_main_thread_and_the_message_is_not_finished(error: BaseException) -> None:
    source = Recorder()

    async def handle(message: Message) -> None:
        raise error

    async def program() -> None:
        inbox = Inbox(SystemClock())
        pool = HandlerPool(make_slots(handle, HandlersIn.THREADS, count=1, timeout_s=None), inbox, clock=SystemClock())
        pool.start()
        inbox.put(messages(b"x", source=source))
        await asyncio.Event().wait()

    with pytest.raises(type(error)):
        asyncio.run(program())
    assert source.answers == REQUEUED


async def test_a_log_that_cannot_be_written_does_not_end_a_slot(unhandled: list[dict[str, Any]]) -> None:
    class Full(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise OSError("no space left on device")

    full = Full()
    log = logging.getLogger("emberq.client.handler")
    log.addFilter(full)
    try:
        await handle_all(failing, b"x", b"y", expected=[*REQUEUED, ("REQ", b"y", None, True)])
    finally:
        log.removeFilter(full)
    assert [str(context["exception"]) for context in unhandled] == ["no space left on device"] * 2
    unhandled.clear()


# Retry policies


def failing(message: Message) -> None:
    raise OSError("as told")


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (timedelta(minutes=1), 60.0),
        (Decimal("1.5"), 1.5),
        (2, 2.0),
        (0, 0.0),
        (None, None),
    ],
)
async def test_a_retry_policy_may_say_its_delay_in_several_ways(delay: Any, seconds: float | None) -> None:
    await handle_all(failing, b"x", expected=[("REQ", b"x", seconds, True)], retry_delay_s=lambda message, error: delay)


async def promise(message: Message, error: BaseException) -> float:
    return 1.0


def refuse(message: Message, error: BaseException) -> float:
    raise SystemError("as told")


def cancel(message: Message, error: BaseException) -> float:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "policy",
    [
        lambda message, error: "1",
        lambda message, error: float("nan"),
        lambda message, error: float("inf"),
        lambda message, error: -1,
        lambda message, error: timedelta(seconds=-1),
        lambda message, error: True,
        lambda message, error: promise(message, error),
        lambda message: 1,
        refuse,
        cancel,
    ],
)
async def test_a_retry_policy_that_makes_no_sense_leaves_the_default_delay_and_the_slot_at_work(
    policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await handle_all(failing, b"x", b"y", expected=[*REQUEUED, ("REQ", b"y", None, True)], retry_delay_s=policy)
    assert "the default delay is used" in caplog.text


# Functions


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (coroutine, True),
        (functools.partial(coroutine), True),
        (CallableObject(), True),
        (functools.partial(CallableObject()), True),
        (plain, False),
        (functools.partial(plain), False),
        (print, False),
    ],
)
def test_coroutine_functions_are_told_from_plain_ones(handler: Any, expected: bool) -> None:
    assert is_coroutine_function(handler) is expected


def yielding(message: Message) -> Iterator[None]:
    yield


async def yielding_in_loop(message: Message) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("function", [None, "handle", ["127.0.0.1:4150"], yielding, yielding_in_loop])
def test_what_would_never_run_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="handler is"):
        check_callable("handler", function)


def test_a_coroutine_in_place_of_its_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"without \(\)"):
        check_callable("handler", coroutine(messages(b"x")[0]))


@pytest.mark.parametrize(
    ("argument", "match"),
    [
        ({"retry_delay_s": promise}, "retry_delay_s is a coroutine function"),
        ({"retry_delay_s": 90}, "retry_delay_s is 90"),
        ({"on_giving_up": "dead"}, "on_giving_up is 'dead'"),
        ({"on_giving_up": yielding}, "on_giving_up is a generator function"),
        ({"handler": ["127.0.0.1:4150"]}, "handler is a list"),
        ({"handler": yielding}, "handler is a generator function"),
        ({"handler": lambda: None}, "handler must take message: too many positional arguments"),
        ({"handler": Work.coroutine}, "handler must take message: missing a required argument: 'message'"),
        ({"on_giving_up": lambda: None}, "on_giving_up must take message"),
        ({"retry_delay_s": lambda message: 1}, "retry_delay_s must take message and error"),
    ],
)
def test_a_consumer_refuses_functions_that_cannot_work(argument: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        Consumer("t", "c", nsqd_addresses=["127.0.0.1:4150"], config=ConsumerConfig(), **argument)
