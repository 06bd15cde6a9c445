"""The live screen: drawn anew when there is news, a key was pressed or the terminal has another size.

It uses the terminal's second screen, so that what was there before comes back at the end, however that comes. A
redrawing overwrites line by line and never clears, so nothing flickers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from emberq.tools.top.frame import Frame, Watcher
from emberq.tools.top.keyboard import Choices, Outcome, read_keys
from emberq.tools.top.view import draw_screen

READ_BYTES = 1024
"""More than anybody types between two readings."""


class LiveScreen:
    """Shows the cluster until the user quits. Owns the terminal meanwhile."""

    def __init__(
        self, console: Console, watcher: Watcher, choices: Choices, *, interval_s: float, keyboard: int | None
    ) -> None:
        self._console = console
        self._watcher = watcher
        self._choices = choices
        self._interval_s = interval_s
        self._keyboard = keyboard
        """The file descriptor of the terminal that keys come from; None if there is none."""
        self._frame = Frame()
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._quit = asyncio.Event()

    async def run(self) -> None:
        """Return when the user quits."""
        with self._live, self._listening():
            self._draw()
            watching = asyncio.ensure_future(self._watch())
            quitting = asyncio.ensure_future(self._quit.wait())
            try:
                await asyncio.wait([watching, quitting], return_when=asyncio.FIRST_COMPLETED)
            finally:
                quitting.cancel()
                watching.cancel()
        if not watching.cancelled() and watching.done():
            watching.result()  # it never ends by itself, so this raises what ended it

    async def _watch(self) -> None:
        while True:
            self._frame = await self._watcher.look()
            self._draw()
            await asyncio.sleep(self._interval_s)

    def _draw(self) -> None:
        width, height = self._console.size
        drawn = draw_screen(self._frame, self._choices, width=width, height=height)
        self._live.update(drawn, refresh=True)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hear keys, each at once, and changes of the terminal's size."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._draw)
        try:
            if self._keyboard is None:
                yield
                return
            with _each_key_at_once(self._keyboard):
                loop.add_reader(self._keyboard, self._read_keys, self._keyboard)
                try:
                    yield
                finally:
                    loop.remove_reader(self._keyboard)
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)

    def _read_keys(self, keyboard: int) -> None:
        data = os.read(keyboard, READ_BYTES)
        if not data:  # the terminal is gone
            self._quit.set()
            return
        outcomes = [self._choices.press(key) for key in read_keys(data.decode("utf-8", "replace"))]
        if Outcome.QUIT in outcomes:
            self._quit.set()
        elif Outcome.REDRAW in outcomes:
            self._draw()


@contextmanager
def _each_key_at_once(terminal: int) -> Iterator[None]:
    """Without waiting for Enter and without showing what is typed, for as long as the block runs."""
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
