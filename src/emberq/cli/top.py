"""The `emberq top` command: the channels of a cluster, live."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from emberq.base.clock import SystemClock
from emberq.cli.argument import duration_s
from emberq.cli.cluster_access import HINT, add_cluster_flags, addresses, upstreams
from emberq.cli.terminal import DONE, CommandError, Terminal, command_parser, run_command
from emberq.cluster.observer import Observer
from emberq.cluster.topology import Topology
from emberq.tools.top.frame import Frame, Watcher, frame_document
from emberq.tools.top.keyboard import Choices
from emberq.tools.top.row import SortKey

DEFAULT_INTERVAL_S = 2.0
MIN_INTERVAL_S = 0.1
"""Looking more often would be work for the nsqds and nothing for the eye."""

DESCRIPTION = "Show topics and channels of a cluster with depths, rates and clients, live."
EPILOG = """\
keys: q quit, / filter, r reverse, arrows scroll; sort by n name, d depth, f in-flight, e deferred, i in, o out,
c clients. IN/s is what came to a channel, OUT/s what it finished. Where standard output is no terminal, a table
is printed every interval.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Show the cluster until told to stop; the exit status."""
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
    return run_command(parser, argv, _top, interrupted_status=DONE)


def _interval_s(text: str) -> float:
    interval_s = duration_s(text)
    if interval_s < MIN_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_INTERVAL_S}s")
    return interval_s


async def _top(arguments: argparse.Namespace, terminal: Terminal) -> int:
    sort = next(sort for sort in SortKey if sort.word == arguments.sort)
    choices = Choices(sort=sort, is_reversed=arguments.reverse, pattern=arguments.filter)
    watcher = _watcher(arguments)
    interval_s = arguments.interval
    if arguments.once:
        await _print_once(watcher, choices, terminal, interval_s=interval_s)
    elif terminal.is_rich:
        await _show_live(watcher, choices, terminal, interval_s=interval_s)
    else:
        await _print_forever(watcher, choices, terminal, interval_s=interval_s)
    return DONE


def _watcher(arguments: argparse.Namespace) -> Watcher:
    ask = upstreams(arguments)
    return Watcher(Observer(ask, Topology(ask, addresses(arguments))), SystemClock())


async def _show_live(watcher: Watcher, choices: Choices, terminal: Terminal, *, interval_s: float) -> None:
    from emberq.tools.top.screen import LiveScreen

    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    await LiveScreen(terminal.console, watcher, choices, interval_s=interval_s, keyboard=keyboard).run()


async def _print_once(watcher: Watcher, choices: Choices, terminal: Terminal, *, interval_s: float) -> None:
    """Two looks, for the rates."""
    frame = await watcher.look()
    if not frame.failure:
        await asyncio.sleep(interval_s)
        frame = await watcher.look()
    if frame.failure:
        raise CommandError(frame.failure, hint=HINT)
    _print_frame(frame, choices, terminal)


async def _print_forever(watcher: Watcher, choices: Choices, terminal: Terminal, *, interval_s: float) -> None:
    while True:
        _print_frame(await watcher.look(), choices, terminal)
        await asyncio.sleep(interval_s)


def _print_frame(frame: Frame, choices: Choices, terminal: Terminal) -> None:
    if terminal.as_json:
        terminal.write_json(frame_document(frame, choices.of(frame.rows)))
        return
    from emberq.tools.top.view import draw_page

    terminal.console.print(draw_page(frame, choices, width=terminal.console.width))


if __name__ == "__main__":
    sys.exit(main())
