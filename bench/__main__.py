"""`python -m bench`: measure, print, and leave nothing behind. Exit code 1 when a run failed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from bench import memory, report
from bench.clients.contest import Contest, hold
from bench.comparison import Outcome, compare
from bench.idle import allow_open_files
from bench.options import Options, parse

_MOST_CONNECTIONS = 12_000
"""Of a work: nsqd inherits the limit of open files."""
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    for number in _STOP_SIGNALS:
        signal.signal(number, _leave)
    allow_open_files(_MOST_CONNECTIONS)
    progress = report.Progress(sys.stderr, rounds=options.rounds)
    ready_bytes = 0 if options.is_quick else memory.wanted_bytes()
    try:
        with memory.ready(ready_bytes, progress.gets_memory):
            outcome = compare(options, progress)
            contest = hold(options, progress)
    finally:
        progress.close()
    _show(outcome, contest, options)
    return 1 if outcome.failures or contest.failures else 0


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind every `with`, which ends the processes and removes the folders; a second signal does not hasten."""
    del frame
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _show(outcome: Outcome, contest: Contest, options: Options) -> None:
    print("\n\n".join(report.tables(outcome, contest, options)))
    for side, version in outcome.servers.items():
        print(f"{side}: {version}")
    for queue, version in contest.versions.items():
        print(f"{queue}: {version}")
    for promise in report.promises(contest, options):
        print(f"confirmed, {promise}")
    for absence in contest.absences:
        print(absence)
    for caution in (*report.cautions(outcome), *contest.cautions):
        print(f"caution: {caution}")
    for failure in (*outcome.failures, *contest.failures):
        print(f"FAILED {failure}", file=sys.stderr)
    if options.json_file is not None:
        options.json_file.write_text(report.document(outcome, contest, options))
    if options.markdown_file is not None:
        options.markdown_file.write_text(report.section(outcome, contest, options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
