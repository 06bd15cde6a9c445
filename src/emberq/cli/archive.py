"""`emberq archive`: topics to Parquet files, each message exactly once; and merging small files."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberq.cli.argument import positive_count, topic_name
from emberq.cli.main import Subcommand
from emberq.cli.spark_work import (
    add_metrics_flag,
    add_spark_flags,
    in_thread,
    location,
    nsq_options,
    require_spark,
    run_with_metrics,
    spark_failures,
    spark_session,
)
from emberq.cli.terminal import DONE, CommandError, CommandParser, Terminal, command_parser, counted, run_command

if TYPE_CHECKING:
    from emberq.spark.pipeline.progress import QueryProgress
    from emberq.spark.pipeline.report import PipelineMetrics


COMPACT = "compact"
DEFAULT_TRIGGER = "30s"
MIB = 1024 * 1024

EXAMPLES = """\
examples:
  emberq archive clicks orders --to data/archive            what is there now, then end; run it again for new ones
  emberq archive clicks --to data/archive --follow          until Ctrl-C, a file for each 30 seconds
  emberq archive clicks --to s3a://bucket/archive --master spark://host:7077
  emberq archive compact data/archive                       merge small files

Files are in DIR/topic=T/date=D/hour=H, by the time of publishing, in UTC. Run it with the same DIR again and it goes on
where it was, also with more topics. A topic that is left out is not read any further. If not all topics are journaled,
they are consumed through their channel archive.files, which has messages only from its creation on.
"""


SUBCOMMANDS = (
    Subcommand(
        COMPACT,
        "emberq.cli.archive:compact",
        "merge the small files of an archive or a Parquet sink",
        "emberq.cli.archive:make_compact_parser",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Archive, or compact; the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == [COMPACT]:
        return compact(words[1:])
    return run_command(make_parser(), words, _archive, is_endless=lambda arguments: arguments.follow)


def compact(argv: Sequence[str]) -> int:
    """Run `emberq archive compact`; the exit status."""
    return run_command(make_compact_parser(), argv, _compact)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq archive", "Write topics to Parquet files.", epilog=EXAMPLES)
    parser.add_argument("topic", nargs="+", type=topic_name, metavar="TOPIC")
    parser.add_argument("--to", required=True, metavar="DIR", help="the archive; created if it does not exist")
    parser.add_argument("--follow", action="store_true", help="go on with new messages, until Ctrl-C")
    parser.add_argument(
        "--every",
        default=DEFAULT_TRIGGER,
        metavar="TIME",
        help=f"with --follow: how often files are written (default {DEFAULT_TRIGGER})",
    )
    parser.add_argument(
        "--batch", type=positive_count, metavar="N", help="write at most N messages at a time (default no limit)"
    )
    add_spark_flags(parser)
    add_metrics_flag(parser)
    return parser


def make_compact_parser() -> CommandParser:
    """Those of `emberq archive compact`."""
    parser = command_parser("emberq archive compact", "Merge the small files of an archive or a Parquet sink.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--target-mib", type=positive_count, default=128, metavar="N", help="how large files may become (default 128)"
    )
    return parser


async def _archive(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with spark_failures(hint="Run it again: it goes on where it was."):
        await run_with_metrics(
            arguments, terminal, lambda stopping, metrics: _run(arguments, terminal, stopping, metrics)
        )
    return DONE


def _run(
    arguments: argparse.Namespace, terminal: Terminal, stopping: threading.Event, metrics: PipelineMetrics
) -> None:
    from emberq.spark.archive import archive_pipeline
    from emberq.spark.pipeline.model import AVAILABLE_NOW
    from emberq.spark.pipeline.run import PipelineRun

    pipeline = archive_pipeline(
        list(dict.fromkeys(arguments.topic)),
        location(arguments.to),
        access=nsq_options(arguments),
        trigger=arguments.every if arguments.follow else AVAILABLE_NOW,
        options={"maxRowsPerTrigger": str(arguments.batch)} if arguments.batch else {},
    )
    progress_bar = terminal.progress(f"-> {arguments.to}")
    archived = 0

    def advance(progress: QueryProgress) -> None:
        nonlocal archived
        metrics.add(progress)
        archived += progress.rows
        progress_bar.advance(progress.rows)

    with spark_session("emberq archive", arguments, terminal, stopping) as spark:
        # Other topics than last time are welcome: each goes on where it was in this archive.
        run = PipelineRun(pipeline, spark, accept_changes=True, on_progress=advance)
        try:
            with progress_bar:
                run.start(until=stopping.is_set)
                run.wait(until=stopping.is_set)
        finally:
            run.stop()
    terminal.report({"archived": archived, "to": arguments.to}, f"archived {counted(archived, 'message')}")


async def _compact(arguments: argparse.Namespace, terminal: Terminal) -> int:
    require_spark()
    from emberq.spark.pipeline.files import compact

    if not arguments.folder.is_dir():
        raise CommandError(f"{arguments.folder} is no folder on this machine")
    done = await in_thread(lambda _stopping: compact(arguments.folder, target_bytes=arguments.target_mib * MIB))
    result = {"files_before": done.files_before, "files_after": done.files_after}
    terminal.report(result, f"{counted(done.files_before, 'file')} before, {done.files_after:,} now")
    return DONE
