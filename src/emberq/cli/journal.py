"""`emberq journal ls`, `cat` and `verify`: journals on disk, listed, printed and checked.

They read the files and need no nsqd. `emberq journal seek`, which moves a channel of a running nsqd, is in
`journal_seek`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emberq.base.text import format_moment, one_line, parse_moment, quoted
from emberq.cli.argument import positive_count
from emberq.cli.main import Subcommand, run_subcommand
from emberq.cli.table import Cell, body_text, figure, name, table, text
from emberq.cli.terminal import (
    DONE,
    FAILED,
    CommandError,
    CommandParser,
    Terminal,
    command_parser,
    counted,
    json_line,
    run_command,
)
from emberq.wire.parameter import body_members

if TYPE_CHECKING:
    from rich.table import Table

    from emberq.storage.journal.inspection import Finding, JournalOverview, JournalRow, VerifyProgress


_HERE = "emberq.cli.journal:"
SUBCOMMANDS = (
    Subcommand(
        "ls",
        _HERE + "list_journals",
        "the journals in a data folder, and how far their channels are",
        _HERE + "make_ls_parser",
    ),
    Subcommand("cat", _HERE + "print_messages", "the messages of a journal", _HERE + "make_cat_parser"),
    Subcommand(
        "verify",
        _HERE + "verify_journals",
        "read every byte of journals and say what is damaged",
        _HERE + "make_verify_parser",
    ),
    Subcommand(
        "seek",
        "emberq.cli.journal_seek:main",
        "have a channel deliver again, or skip ahead",
        "emberq.cli.journal_seek:make_parser",
    ),
)
REMARK = "ls, cat and verify read the files and need no nsqd; it may run meanwhile. seek talks to nsqd.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    return run_subcommand("emberq journal", SUBCOMMANDS, words, remark=REMARK)


# Which journals a path means.

PATHS_HELP = "a data folder, or a journal's own folder (default: all in or below this folder)"
HINT = "Give the data folder of an nsqd that journals its topics (nsqd --journal, emberq up), or a folder in it."


def add_paths_argument(parser: argparse.ArgumentParser) -> None:
    """Read the argument with `journals_at`."""
    parser.add_argument("paths", type=Path, nargs="*", default=[], metavar="PATH", help=PATHS_HELP)


def journals_at(paths: list[Path]) -> list[Path]:
    """The folders of all journals at these paths; CommandError if there is none."""
    asked = paths or [Path()]
    found = [folder for path in asked for folder in _found(path)]
    if not found:
        raise CommandError(f"no journal in {', '.join(str(path) for path in asked)}", hint=HINT)
    return found


def journal_at(path: Path) -> Path:
    """The folder of the only journal at this path. CommandError if there are none or several."""
    found = journals_at([path])
    if len(found) > 1:
        names = ", ".join(str(folder) for folder in found[:10])
        raise CommandError(f"there are {len(found)} journals in {path}", hint=f"Choose one: {names}")
    return found[0]


def _found(path: Path) -> list[Path]:
    from emberq.storage.error import JournalOpenError
    from emberq.storage.journal.inspection import find_journals

    try:
        return find_journals(path)
    except JournalOpenError as failure:
        raise CommandError(str(failure), hint=HINT) from failure


# ls

LS_EXAMPLES = """\
examples:
  emberq journal ls                        those in or below this folder
  emberq journal ls /var/lib/nsqd --json   those of one nsqd, as lines of JSON

LAG is how many messages the channel has still to finish. nsqd may run meanwhile; what its channels have done in the
last second may not be in their files yet. A pipe gets lines of JSON.
"""


def list_journals(argv: Sequence[str] | None = None) -> int:
    """List journals; the exit status."""
    return run_command(make_ls_parser(), argv, _ls)


def make_ls_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq journal ls", "Show which journals there are.", epilog=LS_EXAMPLES)
    add_paths_argument(parser)
    return parser


async def _ls(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from emberq.storage.error import JournalOpenError
    from emberq.storage.journal.inspection import survey

    surveys: list[JournalOverview] = []
    status = DONE
    for folder in journals_at(arguments.paths):
        try:
            surveys.append(survey(folder))
        except JournalOpenError as failure:
            terminal.note(str(failure))
            status = FAILED
    if terminal.is_rich:
        terminal.console.print(_table(surveys, width=terminal.console.width))
    else:
        for each in surveys:
            terminal.write_json(_journal_document(each))
    return status


def _journal_document(journal: JournalOverview) -> dict[str, Any]:
    return {
        "topic": journal.topic,
        "path": str(journal.path),
        "uuid": str(journal.identity.uuid),
        "created": journal.identity.created,
        "first_offset": journal.first_offset,
        "next_offset": journal.next_offset,
        "bytes": journal.size_bytes,
        "segments": journal.segment_count,
        "channels": [
            {"channel": place.channel, "low_water": place.low_water, "lag": place.lag} for place in journal.channels
        ],
    }


def _table(surveys: Sequence[JournalOverview], *, width: int) -> Table:
    """A row for each journal, and one below it for each further channel."""
    from rich.filesize import decimal
    from rich.text import Text

    columns = [name("TOPIC"), name("CHANNEL"), *map(figure, ("LAG", "FIRST", "NEXT", "SIZE", "FILES")), text("FOLDER")]
    rows: list[tuple[Cell, ...]] = []
    for journal in surveys:
        topic, folder = Text(one_line(journal.topic)), Text(one_line(str(journal.path.parent)), style="dim")
        facts = (
            f"{journal.first_offset:,}",
            f"{journal.next_offset:,}",
            decimal(journal.size_bytes),
            str(journal.segment_count),
        )
        places: list[tuple[Cell, Cell]] = [
            (Text(one_line(place.channel)), Text(f"{place.lag:,}", style="yellow" if place.lag else "dim"))
            for place in journal.channels
        ]
        first, *others = places or [("", "")]
        rows.append((topic, *first, *facts, folder))
        rows += [("", *place, *[""] * len(facts), "") for place in others]
    return table(columns, rows, width=width)


# cat

CAT_EXAMPLES = """\
examples:
  emberq journal cat /var/lib/nsqd/orders.journal                       all messages, one line each
  emberq journal cat orders.journal --from 1000 -n 10 --json            ten of them, as lines of JSON
  emberq journal cat orders.journal --from 2026-11-15T09:00:00Z | gzip  what was published since nine

A pipe gets the bodies as they are, a terminal shows offset and time before each. Reads the files: nsqd may run
meanwhile, and what has just been published may be missing. Messages that cannot be read are reported on standard
error, and the exit status is 1.
"""
LINES_AT_ONCE = 1000
"""Written together. Ctrl-C takes effect between two such blocks."""


class Start(NamedTuple):
    """Where to begin: at an offset, and not before a moment."""

    offset: int = 0
    time_ns: int = 0


def print_messages(argv: Sequence[str] | None = None) -> int:
    """Show messages; the exit status."""
    return run_command(make_cat_parser(), argv, _cat)


def make_cat_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq journal cat", "Show the messages of a journal.", epilog=CAT_EXAMPLES)
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
    return parser


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
    import asyncio

    from emberq.storage.error import JournalOpenError
    from emberq.storage.journal.inspection import dump
    from emberq.storage.journal.scan import Damage

    folder = journal_at(arguments.path)
    damage_count = 0

    def rows() -> Iterator[JournalRow]:
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


def _write(rows: Sequence[JournalRow], terminal: Terminal) -> None:
    if terminal.as_json:
        terminal.write("\n".join(json_line(_message_document(row)) for row in rows))
    elif terminal.is_rich:
        for row in rows:
            _draw(row, terminal)
    else:
        terminal.write_bytes(b"\n".join(row.body for row in rows))


def _message_document(row: JournalRow) -> dict[str, Any]:
    document: dict[str, Any] = {"offset": row.offset, "timestamp_ns": row.timestamp_ns}
    if row.due_ns:
        document["due_ns"] = row.due_ns
    return {**document, **body_members(row.body)}


def _draw(row: JournalRow, terminal: Terminal) -> None:
    from rich.text import Text

    facts = Text(f"{row.offset:>10} {format_moment(row.timestamp_ns)[:23]} ", style="dim")
    terminal.console.print(facts + body_text(row.body), soft_wrap=True)


# verify

VERIFY_EXAMPLES = """\
examples:
  emberq journal verify /var/lib/nsqd                  every journal of an nsqd
  emberq journal verify orders.journal --json          one of them, as lines of JSON

Changes nothing. nsqd may run meanwhile; then the end of a journal may look torn because it is just being written.
nsqd repairs a `note` when it starts. A `loss` means that messages are gone; the exit status is then 1.
"""
MEGABYTE = 1_000_000


def verify_journals(argv: Sequence[str] | None = None) -> int:
    """Check journals; the exit status."""
    return run_command(make_verify_parser(), argv, _verify)


def make_verify_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser(
        "emberq journal verify", "Read every byte of journals and check it.", epilog=VERIFY_EXAMPLES
    )
    add_paths_argument(parser)
    return parser


async def _verify(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from emberq.storage.error import JournalOpenError

    status = DONE
    for folder in journals_at(arguments.paths):
        try:
            loss_count = await _check(folder, terminal)
        except JournalOpenError as failure:
            terminal.note(str(failure))
            status = FAILED
            continue
        if loss_count:
            status = FAILED
    return status


async def _check(folder: Path, terminal: Terminal) -> int:
    """Read the journal to its end and report; how often messages are lost.

    Findings are shown as they come, above a bar that counts megabytes.
    """
    import asyncio

    from emberq.storage.journal.inspection import Finding, Severity, VerifyProgress, verify

    counts = dict.fromkeys(Severity, 0)
    progress, shown_megabytes = VerifyProgress(0, 0, 0, 0), 0
    with terminal.progress(f"{folder.name} (MB)", total=_size_bytes(folder) // MEGABYTE) as bar:
        for found in verify(folder):
            if isinstance(found, Finding):
                counts[found.severity] += 1
                _show(found, terminal)
                continue
            progress = found
            bar.advance(found.done_bytes // MEGABYTE - shown_megabytes)
            shown_megabytes = found.done_bytes // MEGABYTE
            await asyncio.sleep(0)  # so that Ctrl-C takes effect
    _report(folder, progress, terminal, notes=counts[Severity.NOTE], losses=counts[Severity.LOSS])
    return counts[Severity.LOSS]


def _size_bytes(folder: Path) -> int:
    from emberq.storage.journal.segment import base_offsets, log_path

    try:
        return sum(log_path(folder, base).stat().st_size for base in base_offsets(folder))
    except OSError:
        return 0  # `verify` reports what is wrong


def _show(finding: Finding, terminal: Terminal) -> None:
    if terminal.as_json:
        terminal.write_json(
            {
                "finding": finding.severity.value,
                "file": str(finding.path),
                "position": finding.position,
                "text": finding.text,
            }
        )
    else:
        terminal.note(f"{finding.severity.value}: {finding.path} at {finding.position}: {finding.text}")


def _report(folder: Path, progress: VerifyProgress, terminal: Terminal, *, notes: int, losses: int) -> None:
    state = f"DAMAGED in {counted(losses, 'place')}" if losses else "sound"
    held = f"{counted(progress.messages, 'message')}, {progress.total_bytes / MEGABYTE:,.1f} MB"
    terminal.report(
        {
            "journal": str(folder),
            "is_sound": not losses,
            "notes": notes,
            "losses": losses,
            "bytes": progress.total_bytes,
            "batches": progress.batches,
            "messages": progress.messages,
        },
        one_line(f"{folder}: {state} ({held})"),
    )
