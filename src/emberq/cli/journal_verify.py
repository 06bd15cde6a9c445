"""The `emberq journal verify` command: are journals sound?"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from emberq.base.printable import one_line
from emberq.cli.journal_paths import add_paths_argument, journals_at
from emberq.cli.terminal import DONE, FAILED, Terminal, command_parser, counted, run_command
from emberq.storage.journal.error import JournalOpenError
from emberq.storage.journal.inspection import Finding, Progress, Severity, verify
from emberq.storage.journal.segment import base_offsets, log_path

EXAMPLES = """\
examples:
  emberq journal verify /var/lib/nsqd                  every journal of an nsqd
  emberq journal verify orders.journal --json          one of them, as lines of JSON

Changes nothing. nsqd may run meanwhile; then the end of a journal may look torn because it is just being written.
A `note` mends itself when nsqd starts. A `loss` means that messages are gone; the exit status is then 1.
"""
MEGABYTE = 1_000_000


class Verdict(NamedTuple):
    """What was found out about one journal."""

    progress: Progress
    note_count: int
    loss_count: int


def main(argv: Sequence[str] | None = None) -> int:
    """Check journals; the exit status."""
    parser = command_parser("emberq journal verify", "Read every byte of journals and check it.", epilog=EXAMPLES)
    add_paths_argument(parser)
    return run_command(parser, argv, _verify)


async def _verify(arguments: argparse.Namespace, terminal: Terminal) -> int:
    status = DONE
    for folder in journals_at(arguments.paths):
        try:
            verdict = await _verdict(folder, terminal)
        except JournalOpenError as failure:
            terminal.note(str(failure))
            status = FAILED
            continue
        _report(folder, verdict, terminal)
        if verdict.loss_count:
            status = FAILED
    return status


async def _verdict(folder: Path, terminal: Terminal) -> Verdict:
    """Read the journal to its end; findings are shown as they come up, above a bar that counts megabytes."""
    counts = dict.fromkeys(Severity, 0)
    progress, shown_megabytes = Progress(0, 0, 0, 0), 0
    with terminal.progress(f"{folder.name} (MB)", total=_size_bytes(folder) // MEGABYTE) as bar:
        for found in verify(folder):
            if isinstance(found, Finding):
                counts[found.severity] += 1
                _show(found, terminal)
                continue
            progress = found
            bar.advance(found.done_bytes // MEGABYTE - shown_megabytes)
            shown_megabytes = found.done_bytes // MEGABYTE
            await asyncio.sleep(0)  # so that Ctrl-C is heeded
    return Verdict(progress, counts[Severity.NOTE], counts[Severity.LOSS])


def _size_bytes(folder: Path) -> int:
    try:
        return sum(log_path(folder, base).stat().st_size for base in base_offsets(folder))
    except OSError:
        return 0  # whatever is wrong, `verify` says it better


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


def _report(folder: Path, verdict: Verdict, terminal: Terminal) -> None:
    progress = verdict.progress
    if terminal.as_json:
        terminal.write_json(
            {
                "journal": str(folder),
                "is_sound": not verdict.loss_count,
                "notes": verdict.note_count,
                "losses": verdict.loss_count,
                "bytes": progress.total_bytes,
                "batches": progress.batches,
                "messages": progress.messages,
            }
        )
        return
    state = f"DAMAGED in {counted(verdict.loss_count, 'place')}" if verdict.loss_count else "sound"
    held = f"{counted(progress.messages, 'message')}, {progress.total_bytes / MEGABYTE:,.1f} MB"
    terminal.write(one_line(f"{folder}: {state} ({held})"))


if __name__ == "__main__":
    sys.exit(main())
