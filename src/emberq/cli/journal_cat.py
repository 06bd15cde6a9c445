"""The `emberq journal cat` command: the messages of a journal."""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from emberq.base.moment import format_moment, parse_moment
from emberq.base.printable import one_line, quoted
from emberq.cli.argument import positive_count
from emberq.cli.journal_paths import journal_at
from emberq.cli.terminal import DONE, FAILED, CommandError, Terminal, command_parser, json_line, run_command
from emberq.storage.journal.error import JournalOpenError
from emberq.storage.journal.inspection import Row, dump
from emberq.storage.journal.scan import Damage

EXAMPLES = """\
examples:
  emberq journal cat /var/lib/nsqd/orders.journal                       all messages, one line each
  emberq journal cat orders.journal --from 1000 -n 10 --json            ten of them, as lines of JSON
  emberq journal cat orders.journal --from 2026-11-15T09:00:00Z | gzip  what was published since nine

A pipe gets the bodies as they are, a terminal shows offset and time before each. Reads the files: nsqd may run
meanwhile, and what has just been published may be missing. Messages that cannot be read are told of on standard
error, and the exit status is 1.
"""
LINES_AT_ONCE = 1000
"""Written together; between two such blocks Ctrl-C is heeded."""


class Start(NamedTuple):
    """Where to begin: at an offset, and not before a moment."""

    offset: int = 0
    time_ns: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Show messages; the exit status."""
    parser = command_parser("emberq journal cat", "Show the messages of a journal.", epilog=EXAMPLES)
    parser.add_argument("path", type=Path, metavar="PATH", help="a journal's folder, or one that has a single journal")
    parser.add_argument(
        "--from",
        type=_start,
        dest="start",
        default=Start(),
        metavar="PLACE",
        help="earliest, an offset, or a time as RFC 3339 writes it (default earliest)",
    )
    parser.add_argument("-n", type=positive_count, dest="count", metavar="N", help="end after N messages")
    return run_command(parser, argv, _cat)


def _start(text: str) -> Start:
    if text == "earliest":
        return Start()
    if text.isascii() and text.isdigit():
        return Start(offset=int(text))
    time_ns = parse_moment(text)
    if time_ns is None:
        expected = "earliest, an offset, or a time such as 2026-11-15T09:00:00Z"
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a place in a journal: {expected}")
    return Start(time_ns=time_ns)


async def _cat(arguments: argparse.Namespace, terminal: Terminal) -> int:
    folder = journal_at(arguments.path)
    damage_count = 0

    def rows() -> Iterator[Row]:
        nonlocal damage_count
        for found in dump(folder, offset=arguments.start.offset):
            if isinstance(found, Damage):
                damage_count += 1
                terminal.note(str(found))
            elif found.timestamp_ns >= arguments.start.time_ns:
                yield found

    wanted = islice(rows(), arguments.count)
    try:
        while block := list(islice(wanted, LINES_AT_ONCE)):
            _write(block, terminal)
            await asyncio.sleep(0)
    except JournalOpenError as failure:
        raise CommandError(str(failure)) from failure
    return FAILED if damage_count else DONE


def _write(rows: Sequence[Row], terminal: Terminal) -> None:
    if terminal.as_json:
        terminal.write("\n".join(json_line(_document(row)) for row in rows))
    elif terminal.is_rich:
        for row in rows:
            _draw(row, terminal)
    else:
        terminal.write_bytes(b"\n".join(row.body for row in rows))


def _document(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = {"offset": row.offset, "timestamp_ns": row.timestamp_ns}
    if row.due_ns:
        document["due_ns"] = row.due_ns
    try:
        return {**document, "body": row.body.decode()}
    except UnicodeDecodeError:
        return {**document, "body_base64": base64.b64encode(row.body).decode()}


def _draw(row: Row, terminal: Terminal) -> None:
    """One line; nothing of a body is read as markup or reaches the terminal as a command."""
    from rich.text import Text

    try:
        body = Text(one_line(row.body.decode()))
    except UnicodeDecodeError:
        body = Text(repr(row.body)[2:-1], style="magenta")
    facts = Text(f"{row.offset:>10} {format_moment(row.timestamp_ns)[:23]} ", style="dim")
    terminal.console.print(facts + body, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
