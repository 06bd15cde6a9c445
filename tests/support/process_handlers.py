"""Handlers for other processes, which have to import them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from emberq.client.message import MessageSnapshot

FOREVER_S = 600.0


class CannotTravel(Exception):
    """Can be pickled, but not unpickled: its arguments are not those it was made with."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class SlowToImport:
    """A handler that takes for ever to arrive in another process."""

    def __call__(self, message: MessageSnapshot) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (FOREVER_S,)


def obey(message: MessageSnapshot) -> None:
    """Do what the body says."""
    match message.body:
        case b"raise":
            raise KeyError("as told")
        case b"raise what cannot travel":
            raise CannotTravel("as", "told")
        case b"exit":
            sys.exit(7)
        case b"be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"hang":
            time.sleep(FOREVER_S)


def evaluate(message: MessageSnapshot) -> Any:
    """Return what the body says."""
    return {b"None": None, b"True": True, b"False": False, b"7": 7}[message.body]


async def work(message: MessageSnapshot) -> None:
    """Nothing, but asynchronously."""


def promise(message: MessageSnapshot) -> Any:
    """Return work that is not done yet."""
    return work(message)


def write_down(folder: str, message: MessageSnapshot) -> None:
    """Leave a file named like the body that tells the number of the process, then do what the body says."""
    unfinished = Path(folder, f".{message.body.decode()}")  # whoever waits for the file reads it at once
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(Path(folder, message.body.decode()))
    obey(message)


def burn(folder: str, seconds: float, message: MessageSnapshot) -> None:
    """Keep a CPU busy before the body is written down."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass
    write_down(folder, message)


def misbehave_at_first(folder: str, how: str, message: MessageSnapshot) -> None:
    """Do as told at the first attempt, unless the message is a good one; write its body down."""
    if message.attempts == 1 and not message.body.startswith(b"good"):
        obey(message._replace(body=how.encode()))
    Path(folder, message.body.decode()).write_text(str(os.getpid()))
