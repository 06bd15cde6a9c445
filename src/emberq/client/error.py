"""What can go wrong between a client and nsqd.

    NsqError
    ├── ConnectError             no connection came about: refused, or not reachable in time
    │   └── HandshakeError       a server answered, but it is no nsqd, or none that can be agreed with (TLS)
    ├── ConnectionLostError      it was there and is gone; whether a command under way was executed is not known
    │   └── NotExecutedError     it is known: nsqd never came to this command
    ├── RequestTimeoutError      a command was not answered in time; whether it was executed is not known
    ├── ClosedError              this producer, consumer or connection has been closed by its owner
    ├── HandlerTimeoutError      a handler took longer than it may
    ├── HandlerDeclinedError     a handler returned False: the message comes again
    ├── BadReturnValueError      a handler returned what says neither that it is done nor that it failed
    ├── WorkerCrashedError       the process in which a handler worked has ended
    ├── RemoteError              a handler in a thread or process raised what cannot be raised here; this is its text
    └── ServerError              nsqd answered with an error: `code`, `text`, `is_fatal`
        ├── BadRequestError      it would refuse the same command again, and so would any other nsqd
        │   └── MessageTooLargeError   a message, or a batch, above nsqd's limit; `size_bytes`, `limit_bytes`
        ├── AuthError            the secret is missing, unknown, or not good for this topic
        ├── PublishError         it could not store the message just now; another nsqd may
        └── NotInFlightError     a FIN, REQ or TOUCH came too late; the only error that leaves the connection open

Failures of a connection are also `ConnectionError`s and timeouts are also `TimeoutError`s, so code that knows nothing
of NSQ treats them rightly. Errors of handlers are never raised; retry policies and observers get to see them. Every
error can be copied and pickled.
"""

from __future__ import annotations

import re
import threading
import traceback
from typing import Any

from emberq.base.text import one_line
from emberq.wire import error as wire_error

MAX_SHOWN_CHARACTERS = 1000
"""Of what a peer said, in an error or a log line. nsqd's own texts are far shorter."""


def shown(text: str) -> str:
    """What a peer said, fit for a line of a log: no line feeds, no terminal escapes, and not endless."""
    line = one_line(text[: MAX_SHOWN_CHARACTERS + 1])  # which may be longer: an escape takes several characters
    return line if len(line) <= MAX_SHOWN_CHARACTERS else f"{line[:MAX_SHOWN_CHARACTERS]}..."


class NsqError(Exception):
    """Whatever a client of NSQ raises on purpose, misuse of an argument (`ValueError`) aside."""


class ConnectError(NsqError, ConnectionError):
    """No connection came about."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.reason), self.__dict__


class HandshakeError(ConnectError):
    """A server answered, but there will be no connection until a setting is changed, here or there."""


class ConnectionLostError(NsqError, ConnectionError):
    """The connection is gone. A command that was under way may or may not have been executed."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.reason), self.__dict__


class NotExecutedError(ConnectionLostError):
    """The connection ended before nsqd came to the command: sending it again cannot make a second copy."""


class RequestTimeoutError(NsqError, TimeoutError):
    """nsqd did not answer in time. The command may or may not have been executed."""


class ClosedError(NsqError):
    """Used after `close`."""


class HandlerTimeoutError(NsqError, TimeoutError):
    """A handler took longer than `handler_timeout_s`."""


class HandlerDeclinedError(NsqError):
    """A handler returned False, so its message comes again."""


class BadReturnValueError(NsqError, TypeError):
    """A handler returned neither None, True nor False. Its message comes again; the text says what to return."""


class WorkerCrashedError(NsqError):
    """The process that a handler worked in has ended: killed for its memory, by a fault in compiled code, by `exit`."""


class RemoteError(NsqError):
    """A handler raised what cannot be raised here: in a process, an exception that cannot be pickled; in a thread, one
    that would end the event loop (`SystemExit`). Its type and text are in this one's text."""


class ServerError(NsqError):
    """nsqd answered with an error: `code` as the protocol spells it (`E_BAD_TOPIC`), and what it said about it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(shown(f"{code} {text}" if text else code))
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text), self.__dict__

    @property
    def is_fatal(self) -> bool:
        """Whether nsqd closes the connection behind it, as it does behind all but late answers to a message."""
        return True


class BadRequestError(ServerError):
    """The command itself is wrong: a name, a size, a number, or the moment at which it was sent."""


class MessageTooLargeError(BadRequestError):
    """A message, or a batch, is larger than nsqd takes: as nsqd said, or as was known before it was sent."""

    def __init__(self, code: str, text: str, *, size_bytes: int = 0, limit_bytes: int = 0) -> None:
        super().__init__(code, text)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class AuthError(ServerError):
    """nsqd does not let this client do what it asked for."""


class PublishError(ServerError):
    """nsqd could not take the message: it is exiting, or its disk fails."""


class NotInFlightError(ServerError):
    """The message had already been answered, or had timed out and may belong to another consumer by now."""

    @property
    def is_fatal(self) -> bool:
        return False


_CLASSES: dict[bytes, type[ServerError]] = {
    wire_error.INVALID: BadRequestError,
    wire_error.BAD_PROTOCOL: BadRequestError,
    wire_error.BAD_BODY: BadRequestError,
    wire_error.BAD_TOPIC: BadRequestError,
    wire_error.BAD_CHANNEL: BadRequestError,
    wire_error.BAD_MESSAGE: BadRequestError,
    wire_error.AUTH_DISABLED: AuthError,
    wire_error.AUTH_FIRST: AuthError,
    wire_error.AUTH_FAILED: AuthError,
    wire_error.UNAUTHORIZED: AuthError,
    wire_error.PUB_FAILED: PublishError,
    wire_error.MPUB_FAILED: PublishError,
    wire_error.DPUB_FAILED: PublishError,
    wire_error.FIN_FAILED: NotInFlightError,
    wire_error.REQ_FAILED: NotInFlightError,
    wire_error.TOUCH_FAILED: NotInFlightError,
}


_TOO_BIG = re.compile(r"(?:message|body) too big ([0-9]{1,19}) > ([0-9]{1,19})\Z")
"""How nsqd says by how much a command is too large: "PUB message too big 105 > 100"."""


def cause_of(failure: BaseException | None) -> object:
    """What a log line says of a failure behind the address; the text of some failures begins with the address."""
    if isinstance(failure, ConnectError | ConnectionLostError):
        return failure.reason
    return failure


def server_error(data: bytes) -> ServerError:
    """The exception for the data of an error frame. Texts echo what clients sent, so they may hold any bytes."""
    code, _, text = data.partition(b" ")
    kind = _CLASSES.get(code, ServerError)
    code_text, said = code.decode("utf-8", "backslashreplace"), text.decode("utf-8", "backslashreplace")
    if kind is BadRequestError and (sizes := _TOO_BIG.search(said)):
        return MessageTooLargeError(code_text, said, size_bytes=int(sizes[1]), limit_bytes=int(sizes[2]))
    return kind(code_text, said)


def describe_error(error: BaseException) -> str:
    """Type and text, as at the end of a traceback; also of an exception whose text cannot be made."""
    return "".join(traceback.format_exception_only(error)).rstrip()


def ends_program(error: BaseException) -> bool:
    """Whether an error that a user's function raised is meant to end the program: then the client lets it pass."""
    is_exit = isinstance(error, SystemExit | KeyboardInterrupt)
    return is_exit and threading.current_thread() is threading.main_thread()
