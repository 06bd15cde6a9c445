"""`emberq top`: the channels of a cluster, live.

The screen is drawn again when there are new figures, a key was pressed or the terminal's size has changed. It is the
terminal's second screen, so what was there before comes back at the end, however that comes. A redraw overwrites line
by line and never clears, so nothing flickers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from emberq.base.clock import SystemClock
from emberq.base.program import off_signal, on_signal
from emberq.cli.argument import add_cluster_flags, addresses, duration_s, upstreams
from emberq.cli.terminal import CLUSTER_HINT, DONE, CommandError, CommandParser, Terminal, command_parser, run_command
from emberq.cli.top_view import (
    Choices,
    KeyOutcome,
    ScreenFrame,
    SortKey,
    Watcher,
    draw_page,
    draw_screen,
    frame_document,
    read_keys,
)

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_INTERVAL_S = 2.0
MIN_INTERVAL_S = 0.1
"""Asking more often is work for the nsqds, and the eye does not see it."""

DESCRIPTION = "Show topics and channels of a cluster with depths, rates and clients, live."
EPILOG = """\
keys: q quit, / filter, r reverse, arrows scroll; sort by n name, d depth, f in-flight, e deferred, i in, o out,
c clients. IN/s is what came to a channel, OUT/s what it finished. If standard output is not a terminal, a table
is printed every interval.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Show the cluster until told to stop; the exit status."""
    return run_command(make_parser(), argv, _top, is_endless=lambda arguments: not arguments.once)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq top", DESCRIPTION, epilog=EPILOG)
    add_cluster_flags(parser)
    parser.add_argument("--once", action="store_true", help="look twice, an interval apart, print and exit")
    parser.add_argument(
        "--interval",
        type=_interval_s,
        default=DEFAULT_INTERVAL_S,
        metavar="DURATION",
        help=f"time between looks, such as 500ms (default {DEFAULT_INTERVAL_S:g}s)",
    )
    parser.add_argument(
        "--filter",
        default="",
        metavar="TEXT",
        help="only topics and channels with this in their name; with * or ? a pattern for the whole name",
    )
    parser.add_argument(
        "--sort",
        choices=[sort.word for sort in SortKey],
        default=SortKey.DEPTH.word,
        help="what to sort by (default %(default)s)",
    )
    parser.add_argument("--reverse", action="store_true", help="sort the other way round")
    return parser


def _interval_s(text: str) -> float:
    interval_s = duration_s(text)
    if interval_s < MIN_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_INTERVAL_S}s")
    return interval_s


async def _top(arguments: argparse.Namespace, terminal: Terminal) -> int:
    import asyncio

    from emberq.cluster.survey import ClusterReader
    from emberq.cluster.topology import Topology

    sort = next(sort for sort in SortKey if sort.word == arguments.sort)
    choices = Choices(sort=sort, is_reversed=arguments.reverse, pattern=arguments.filter)
    ask = upstreams(arguments)
    watcher = Watcher(ClusterReader(ask, Topology(ask, addresses(arguments))), SystemClock())
    interval_s = arguments.interval
    if arguments.once:
        await _print_once(watcher, choices, terminal, interval_s=interval_s)
    elif terminal.is_rich:
        keyboard = sys.stdin.fileno() if sys.stdin.isatty() and can_read_keys() else None
        await LiveScreen(terminal.console, watcher, choices, interval_s=interval_s, keyboard=keyboard).run()
    else:
        while True:
            _print_frame(await watcher.look(), choices, terminal)
            await asyncio.sleep(interval_s)
    return DONE


async def _print_once(watcher: Watcher, choices: Choices, terminal: Terminal, *, interval_s: float) -> None:
    """Look twice, because rates need two looks."""
    import asyncio

    frame = await watcher.look()
    if not frame.failure:
        await asyncio.sleep(interval_s)
        frame = await watcher.look()
    if frame.failure:
        raise CommandError(frame.failure, hint=CLUSTER_HINT)
    _print_frame(frame, choices, terminal)


def _print_frame(frame: ScreenFrame, choices: Choices, terminal: Terminal) -> None:
    if terminal.as_json:
        terminal.write_json(frame_document(frame, choices.of(frame.rows)))
        return
    terminal.console.print(draw_page(frame, choices, width=terminal.console.width))


# The live screen.

READ_BYTES = 1024
"""More than a user types between two reads."""


class LiveScreen:
    """Shows the cluster until the user quits. Owns the terminal until then."""

    def __init__(
        self, console: Console, watcher: Watcher, choices: Choices, *, interval_s: float, keyboard: int | None
    ) -> None:
        import asyncio

        from rich.live import Live

        self._console = console
        self._watcher = watcher
        self._choices = choices
        self._interval_s = interval_s
        self._keyboard = keyboard
        """The file descriptor of the terminal that keys come from; None if there is none."""
        self._frame = ScreenFrame()
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._quit = asyncio.Event()

    async def run(self) -> None:
        """Return when the user quits."""
        import asyncio

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
            watching.result()  # raises what ended it

    async def _watch(self) -> None:
        import asyncio

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
        """Handle keys and changes of the terminal's size while the block runs."""
        import asyncio

        loop = asyncio.get_running_loop()
        resized = (signal.SIGWINCH,) if hasattr(signal, "SIGWINCH") else ()  # Windows has no such signal
        for number in resized:
            on_signal(number, self._draw)
        try:
            if self._keyboard is None:
                yield
                return
            with _unbuffered_keys(self._keyboard):
                loop.add_reader(self._keyboard, self._read_keys, self._keyboard)
                try:
                    yield
                finally:
                    loop.remove_reader(self._keyboard)
        finally:
            for number in resized:
                off_signal(number)

    def _read_keys(self, keyboard: int) -> None:
        data = os.read(keyboard, READ_BYTES)
        if not data:  # the terminal is gone
            self._quit.set()
            return
        outcomes = [self._choices.press(key) for key in read_keys(data.decode("utf-8", "replace"))]
        if KeyOutcome.QUIT in outcomes:
            self._quit.set()
        elif KeyOutcome.REDRAW in outcomes:
            self._draw()


def can_read_keys() -> bool:
    """Whether keys can be read one by one. On Windows they cannot: the screen is shown, and Ctrl-C ends it."""
    return find_spec("termios") is not None


@contextmanager
def _unbuffered_keys(terminal: int) -> Iterator[None]:
    """While the block runs, keys arrive without Enter and are not echoed."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
