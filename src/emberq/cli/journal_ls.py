"""The `emberq journal ls` command: which journals there are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emberq.base.printable import one_line
from emberq.cli.journal_paths import add_paths_argument, journals_at
from emberq.cli.terminal import DONE, FAILED, Terminal, command_parser, run_command
from emberq.storage.journal.error import JournalOpenError
from emberq.storage.journal.survey import Survey, survey

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """\
examples:
  emberq journal ls                        those in or below this folder
  emberq journal ls /var/lib/nsqd --json   those of one nsqd, as lines of JSON

LAG is how many messages the channel has still to finish. nsqd may run meanwhile; what its channels have done in the
last second may not be in their files yet. A pipe gets lines of JSON.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """List journals; the exit status."""
    parser = command_parser("emberq journal ls", "Show which journals there are.", epilog=EXAMPLES)
    add_paths_argument(parser)
    return run_command(parser, argv, _ls)


async def _ls(arguments: argparse.Namespace, terminal: Terminal) -> int:
    surveys: list[Survey] = []
    status = DONE
    for folder in journals_at(arguments.paths):
        try:
            surveys.append(survey(folder))
        except JournalOpenError as failure:
            terminal.note(str(failure))
            status = FAILED
    if terminal.is_rich:
        terminal.console.print(_table(surveys))
    else:
        for each in surveys:
            terminal.write_json(_document(each))
    return status


def _document(journal: Survey) -> dict[str, Any]:
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


def _table(surveys: Sequence[Survey]) -> Table:
    """A row for each journal, and one below it for each further channel."""
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("TOPIC", no_wrap=True)
    for title in ("FIRST", "NEXT", "SIZE", "FILES"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("CHANNEL", no_wrap=True)
    table.add_column("LAG", justify="right", no_wrap=True)
    table.add_column("FOLDER", no_wrap=True, overflow="ellipsis", style="dim")
    for journal in surveys:
        facts = (
            Text(one_line(journal.topic)),
            f"{journal.first_offset:,}",
            f"{journal.next_offset:,}",
            decimal(journal.size_bytes),
            str(journal.segment_count),
        )
        places: list[tuple[Text | str, Text | str]] = [
            (Text(one_line(place.channel)), Text(f"{place.lag:,}", style="yellow" if place.lag else "dim"))
            for place in journal.channels
        ]
        for number, place in enumerate(places or [("", "")]):
            folder = Text(one_line(str(journal.path.parent)))
            table.add_row(*(facts if not number else [""] * len(facts)), *place, folder if not number else "")
    return table


if __name__ == "__main__":
    sys.exit(main())
