"""`emberq pipeline`: run, check or look at a pipeline of Spark in a TOML file."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from emberq.cli.spark_work import (
    add_metrics_flag,
    add_spark_flags,
    in_thread,
    run_with_metrics,
    secret_options,
    spark_failures,
    spark_session,
    tls_options,
)
from emberq.cli.terminal import DONE, CommandError, CommandParser, Terminal, command_parser, run_command

if TYPE_CHECKING:
    from emberq.spark.pipeline.checkpoint import QueryStatus
    from emberq.spark.pipeline.progress import QueryProgress
    from emberq.spark.pipeline.report import PipelineMetrics, ProgressTable
    from emberq.spark.pipeline.toml_file import PipelineFile


REDRAWS_PER_SECOND = 4

EXAMPLES = """\
examples:
  emberq pipeline validate clicks.toml                   is it right? every problem with its line
  emberq pipeline run clicks.toml                        on this machine, until Ctrl-C
  emberq pipeline run clicks.toml --once                 what is there now, then end
  emberq pipeline run clicks.toml --master spark://h:7077
  emberq pipeline status clicks.toml                     how far each sink is, and what it has still to read

Another run goes on where the last one was, whatever ended it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run, validate or show a pipeline; the exit status."""
    return run_command(make_parser(), argv, _pipeline, is_endless=_is_endless)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq pipeline", "Run pipelines of Spark over topics.", epilog=EXAMPLES)
    parser.add_argument("action", choices=("run", "validate", "status"))
    parser.add_argument("file", metavar="FILE", help="the pipeline, in TOML")
    parser.add_argument("--once", action="store_true", help="run: end when what is there now has been read")
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="run: go on although a topic, or what kept state depends on, has changed, if Spark can",
    )
    parser.add_argument("--quick", action="store_true", help="validate: without starting Spark, so SQL is not checked")
    add_spark_flags(parser)
    add_metrics_flag(parser)
    return parser


def _is_endless(arguments: argparse.Namespace) -> bool:
    return arguments.action == "run" and not arguments.once


async def _pipeline(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with spark_failures(hint="Run it again: it goes on where it was." if arguments.action == "run" else ""):
        from emberq.spark.pipeline.model import PipelineError

        try:
            if arguments.action == "run":
                await run_with_metrics(
                    arguments, terminal, lambda stopping, metrics: _run(arguments, terminal, stopping, metrics)
                )
            else:
                look = _validate if arguments.action == "validate" else _status
                await in_thread(lambda stopping: look(arguments, terminal, stopping))
        except PipelineError as wrong:
            *problems, last = str(wrong).splitlines()
            for problem in problems:
                terminal.note(problem)
            raise CommandError(last) from wrong
    return DONE


def _loaded(arguments: argparse.Namespace) -> PipelineFile:
    """The pipeline in the file, changed as the flags say."""
    from emberq.spark.pipeline.model import AVAILABLE_NOW
    from emberq.spark.pipeline.toml_file import load_pipeline

    try:
        loaded = load_pipeline(arguments.file)
    except (OSError, UnicodeDecodeError) as failure:
        raise CommandError(f"{arguments.file}: {failure}") from failure
    pipeline = loaded.pipeline
    if arguments.nsqd_http_address or arguments.lookupd_http_address:
        nsqds, lookupds = tuple(arguments.nsqd_http_address), tuple(arguments.lookupd_http_address)
        pipeline = replace(pipeline, nsqd=nsqds, lookupd=lookupds)
    options = {**pipeline.options, **tls_options(arguments)}
    pipeline = replace(pipeline, options=options, secrets=secret_options(arguments))
    if arguments.once:
        sinks = {name: replace(sink, trigger="") for name, sink in pipeline.sinks.items()}
        pipeline = replace(pipeline, trigger=AVAILABLE_NOW, sinks=sinks)
    return replace(loaded, pipeline=pipeline)


def _validate(arguments: argparse.Namespace, terminal: Terminal, stopping: threading.Event) -> None:
    loaded = _loaded(arguments)
    pipeline = loaded.pipeline
    if not arguments.quick:
        from emberq.spark.pipeline.build import build

        with spark_session(pipeline.name, arguments, terminal, stopping, config=pipeline.spark) as spark:
            build(pipeline, spark, origin=loaded.origin)
    terminal.report(
        {"file": arguments.file, "pipeline": pipeline.name, "valid": True},
        f"{arguments.file} is right: {', '.join(pipeline.sources)} -> {', '.join(pipeline.sinks)}"
        + (" (SQL not looked at)" if arguments.quick else ""),
    )


def _run(
    arguments: argparse.Namespace, terminal: Terminal, stopping: threading.Event, metrics: PipelineMetrics
) -> None:
    loaded = _loaded(arguments)
    pipeline = loaded.pipeline
    from emberq.spark.pipeline import report
    from emberq.spark.pipeline.run import PipelineRun

    table = report.ProgressTable()

    def show(progress: QueryProgress) -> None:
        table.add(progress)
        metrics.add(progress)
        if progress.rows and not terminal.is_rich:
            try:
                _write_progress(terminal, progress)
            except BrokenPipeError:  # the reader of the pipe is gone
                stopping.set()

    with spark_session(pipeline.name, arguments, terminal, stopping, config=pipeline.spark) as spark:
        run = PipelineRun(
            pipeline, spark, origin=loaded.origin, accept_changes=arguments.accept_changes, on_progress=show
        )
        try:
            run.start(until=stopping.is_set)
            terminal.note(f"{pipeline.name} runs; {'it ends by itself' if arguments.once else 'Ctrl-C stops it'}")
            _watch(run.wait, table, terminal, stopping)
        finally:
            run.stop()
    if not terminal.as_json:
        terminal.write(f"{pipeline.name}: {table.summary()}")


def _watch(wait: Callable[..., None], table: ProgressTable, terminal: Terminal, stopping: threading.Event) -> None:
    """Wait. Show the table meanwhile if it goes to a terminal."""
    if not (terminal.is_rich and terminal.is_watched):
        wait(until=stopping.is_set)
        return
    from rich.live import Live

    with Live(console=terminal.error_console, get_renderable=table.drawn, refresh_per_second=REDRAWS_PER_SECOND):
        wait(until=stopping.is_set)


def _write_progress(terminal: Terminal, progress: QueryProgress) -> None:
    bad = sum(progress.bad.values())
    terminal.report(
        asdict(progress),
        f"{progress.time} {progress.query} batch {progress.batch}: {progress.rows:,} rows in "
        f"{progress.duration_ms:,} ms{f', {bad:,} bad' if bad else ''}",
    )


def _status(arguments: argparse.Namespace, terminal: Terminal, _stopping: threading.Event) -> None:
    from emberq.spark.pipeline.checkpoint import pipeline_status

    pipeline = _loaded(arguments).pipeline
    if "://" in pipeline.checkpoint:
        raise CommandError(f"the checkpoint {pipeline.checkpoint} is not on this machine")
    found = pipeline_status(pipeline)
    if not found and not terminal.as_json:
        terminal.note(f"{pipeline.name} has never run with the checkpoint {pipeline.checkpoint}")
    for status in found:
        terminal.report(asdict(status), _described(status))


def _described(status: QueryStatus) -> str:
    if status.batch is None:
        return f"{status.query}: has not finished a batch yet"
    lag = "unknown" if status.lag is None else f"{status.lag:,} messages"
    where = ", ".join(f"{place} {offset:,}" for place, offset in status.offsets.items())
    return f"{status.query}: batch {status.batch} done at {status.done_at}; behind by {lag}; next {where}"
