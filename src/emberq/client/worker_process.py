"""A process that handles messages, one at a time, and can be killed without harm to any other.

Each worker has a pipe of its own. Pickled objects travel on it:

    here                            the worker
                                    imports what the handler needs
                              ←     None: ready
    MessageSnapshot           →     calls the handler
                              ←     None: the message is done; an exception: it is not, and why
    (closes)                  →     ends

If the pipe ends where an answer should be, the worker has crashed. The next message gets a new one. A worker whose
consumer has died reads the end of the pipe as well, so it does not live on alone.

Workers are spawned, not forked: a fork of a program with threads and an event loop is a copy of it in the middle of
whatever it did. So the handler is pickled (a function that can be imported, a `functools.partial` of one, an object of
an importable class), and the main module of a program that uses workers needs its `if __name__ == "__main__":`.
"""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from emberq.client.argument import describe, discard
from emberq.client.error import (
    BadReturnValueError,
    HandlerDeclinedError,
    RemoteError,
    WorkerCrashedError,
    describe_error,
)
from emberq.client.message import MessageSnapshot
from emberq.client.verdict import check_returned

START_TIMEOUT_S = 60.0
"""Far more than any import takes, so that one that hangs is noticed."""
STOP_TIMEOUT_S = 2.0
"""For a worker that has nothing to do and was told to end: what it runs `atexit` should not take longer."""

_spawning = multiprocessing.get_context("spawn")


def pickled_handler(handler: Callable[[MessageSnapshot], Any]) -> bytes:
    """The handler as it travels to a worker; ValueError if it cannot."""
    try:
        return pickle.dumps(handler)
    except Exception as error:  # pickle raises whatever it meets
        raise ValueError(f"handler {handler!r} cannot be used in another process: {error}") from error


class WorkerProcess:
    """A running worker. Owned by one thread, which may block here; `kill` may be called by any other."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    def start(cls, handler: bytes) -> Self:
        """A new worker, which is on its way."""
        pipe, far_end = _spawning.Pipe()
        process = _spawning.Process(target=_serve, args=(far_end, handler), daemon=True)
        process.start()
        far_end.close()  # or the worker's end would not end with the worker
        return cls(process, pipe)

    def wait_until_ready(self) -> None:
        """Called once; `WorkerCrashedError` if it does not come so far."""
        if not self._pipe.poll(START_TIMEOUT_S):
            self.kill()
        self._receive()

    @property
    def is_ready(self) -> bool:
        """Whether it can still handle messages. Asked between them: then all that it can have sent is the end."""
        return not self._pipe.closed and not self._pipe.poll()

    def handle(self, message: MessageSnapshot) -> None:
        """Let the worker handle a message; raises what the handler raised, or `WorkerCrashedError`."""
        try:
            self._pipe.send(message)
        except OSError as error:
            raise self._crashed() from error
        raised = self._receive()
        if raised is not None:
            raise raised

    def kill(self) -> None:
        """End the process now, whatever it does."""
        with suppress(ValueError):  # it has been stopped
            self._process.kill()

    def stop(self) -> None:
        """Let an idle worker end, kill any other, and wait until it is gone. Stopping twice is harmless."""
        if self._pipe.closed:
            return
        self._pipe.close()
        self._process.join(STOP_TIMEOUT_S)
        self._process.kill()
        self._process.join()
        self._process.close()

    def _receive(self) -> BaseException | None:
        try:
            raised: BaseException | None = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._crashed() from error
        return raised

    def _crashed(self) -> WorkerCrashedError:
        self._process.join(STOP_TIMEOUT_S)  # the pipe ends a moment before the process does
        exit_code = self._process.exitcode
        self.stop()
        return WorkerCrashedError(f"the process of the handler ended, {_describe_exit(exit_code)}")


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "or closed its pipe"
    return f"killed by signal {-exit_code}" if exit_code < 0 else f"with exit code {exit_code}"


# In the worker


def _serve(pipe: Connection, handler: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the consumer, which ends its workers in good order
    handle: Callable[[MessageSnapshot], Any] = pickle.loads(handler)  # noqa: S301 - by our parent, of its own handler
    pipe.send(None)
    while True:
        try:
            message: MessageSnapshot = pipe.recv()
        except EOFError:
            return
        pipe.send(_raised_by(handle, message))


def _raised_by(handle: Callable[[MessageSnapshot], Any], message: MessageSnapshot) -> BaseException | None:
    try:
        value = handle(message)
    except Exception as error:  # noqa: BLE001 - whatever it is, the consumer is told; SystemExit ends the worker
        return _portable(error)
    if inspect.isawaitable(value):
        discard(value)
        return BadReturnValueError(
            f"the handler returned {describe(value)}, and a process has no event loop to await it in: leave out "
            "handlers_in, or call asyncio.run in the handler"
        )
    try:
        check_returned(value)
    except (HandlerDeclinedError, BadReturnValueError) as failure:
        return failure.with_traceback(None)  # it tells of nothing but this function
    return None


def _portable(error: Exception) -> BaseException:
    """An exception that will come out of the pipe, with the traceback that would not as a note."""
    portable: BaseException = error
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own; some exceptions can be pickled but not unpickled
    except Exception:  # noqa: BLE001 - pickle raises whatever it meets
        portable = RemoteError(describe_error(error))
    portable.add_note("in the process of the handler:\n" + "".join(traceback.format_exception(error)))
    return portable
