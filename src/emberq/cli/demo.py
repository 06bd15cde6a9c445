"""The `emberq demo` command: a whole NSQ with the clickstream pipeline and made-up visits, live.

Without --count it runs until Ctrl-C. With it, so many visits are made; then everything that came out is counted and
compared with what went in, and the exit status says whether it is the same.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from emberq.cli.argument import positive_count
from emberq.cli.spark_work import add_master_flag, in_thread, require_spark, start_session
from emberq.cli.terminal import DONE, FAILED, CommandError, Terminal, command_parser, run_command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emberq.spark.clickstream_check import Check
    from emberq.spark.pipeline.model import Pipeline
    from emberq.spark.pipeline.progress_table import ProgressTable
    from emberq.tools.generate_events import ClickGenerator

DEFAULT_RATE = 200
BROKEN_EVERY = 100
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
CATCH_UP_TIMEOUT_S = 600.0
"""Generous: a busy machine may need minutes to start Spark's workers."""
LOOK_INTERVAL_S = 0.5
LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = 4150, 4151, 4160, 4161, 4171


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; the exit status."""
    parser = command_parser("emberq demo", "Run the clickstream pipeline with made-up events.")
    parser.add_argument("file", type=Path, metavar="FILE", help="examples/spark/clickstream.toml, or one like it")
    parser.add_argument("--count", type=positive_count, metavar="N", help="make N events, check what comes out, end")
    parser.add_argument(
        "--rate",
        type=positive_count,
        metavar="N",
        help=f"events a second (default {DEFAULT_RATE}; as fast as can be with --count)",
    )
    parser.add_argument(
        "--data-path",
        type=Path,
        metavar="DIR",
        help="where everything is kept (default emberq-data; with --count a folder that goes at the end)",
    )
    add_master_flag(parser)
    return run_command(parser, argv, _demo, interrupted_status=DONE)


async def _demo(arguments: argparse.Namespace, terminal: Terminal) -> int:
    require_spark()
    from emberq.spark.error import NsqSparkError

    try:
        return await in_thread(lambda stopping: _run(arguments, terminal, stopping))
    except NsqSparkError as failure:
        raise CommandError(str(failure)) from failure


def _run(arguments: argparse.Namespace, terminal: Terminal, stopping: threading.Event) -> int:
    with ExitStack() as running:
        folder = arguments.data_path or Path("emberq-data")
        if arguments.count and arguments.data_path is None:
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="emberq-demo-")))
        ports = _free_ports(len(DEFAULT_PORTS)) if arguments.count else DEFAULT_PORTS
        running.enter_context(_stack(folder.absolute(), ports))
        pipeline = _pipeline(arguments.file, folder.absolute(), http_port=ports[1])
        generator, table = _run_pipeline(arguments, terminal, stopping, pipeline, tcp_port=ports[0])
        made = generator.generated
        terminal.note(f"{made.total:,} events made, {made.broken:,} of them broken; {table.bad_count():,} found bad")
        if not arguments.count or stopping.is_set():
            return DONE
        from emberq.spark.clickstream_check import check_clickstream

        checks = check_clickstream(pipeline, good=made.good, broken=made.broken, pages=made.pages)
    return _report(terminal, checks)


def _pipeline(file: Path, folder: Path, *, http_port: int) -> Pipeline:
    from emberq.spark.pipeline.toml_file import read_pipeline

    try:
        text = file.read_text(encoding="utf-8")
    except OSError as failure:
        raise CommandError(str(failure)) from failure
    pipeline = read_pipeline(text, file=str(file), folder=folder).pipeline
    return replace(pipeline, nsqd=(f"{LOOPBACK}:{http_port}",), lookupd=())


def _run_pipeline(
    arguments: argparse.Namespace, terminal: Terminal, stopping: threading.Event, pipeline: Pipeline, *, tcp_port: int
) -> tuple[ClickGenerator, ProgressTable]:
    from emberq.spark.pipeline.progress_table import ProgressTable
    from emberq.spark.pipeline.run import PipelineRun
    from emberq.tools.generate_events import ClickGenerator, wall_clock

    generator = ClickGenerator(now=wall_clock, seed=time.time_ns(), broken_every=BROKEN_EVERY)
    table = ProgressTable()
    events = _Events(generator, f"{LOOPBACK}:{tcp_port}", count=arguments.count, rate=arguments.rate)
    events.start()
    spark = start_session("emberq demo", arguments, terminal, pipeline.spark)
    run = PipelineRun(pipeline, spark, on_progress=table.add)
    is_done = _done_when(events, pipeline, stopping, is_bounded=arguments.count is not None)
    try:
        run.start()
        with _summary(terminal, table, generator):
            run.wait(until=is_done)
    finally:
        events.stop()
        run.stop()
        spark.stop()
    return generator, table


def _done_when(
    events: _Events, pipeline: Pipeline, stopping: threading.Event, *, is_bounded: bool
) -> Callable[[], bool]:
    """Told to stop; or, for so many events, when every query has read the last one."""
    from emberq.spark.pipeline.checkpoint_status import pipeline_status

    query_count = len(pipeline.sinks) + sum(source.bad_records is not None for source in pipeline.sources.values())
    deadline_s = time.monotonic() + CATCH_UP_TIMEOUT_S

    def is_done() -> bool:
        if events.failure is not None:
            raise CommandError(f"events could not be published: {events.failure}")
        if stopping.is_set() or not is_bounded or not events.are_published:
            return stopping.is_set()
        if time.monotonic() > deadline_s:
            raise CommandError(f"the pipeline did not catch up within {CATCH_UP_TIMEOUT_S:g} s")
        statuses = pipeline_status(pipeline)
        return len(statuses) == query_count and all(status.lag == 0 for status in statuses)

    return is_done


class _Events:
    """Publishes made-up events, in a thread of its own."""

    def __init__(self, generator: ClickGenerator, nsqd: str, *, count: int | None, rate: int | None) -> None:
        self._generator = generator
        self._nsqd = nsqd
        self._count = count
        self._rate = rate or (count or DEFAULT_RATE)
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="emberq-events", daemon=True)
        self.are_published = False
        self.failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when no more events are made."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        from emberq.client import NsqError

        self._task = self._loop.create_task(self._publish())
        try:
            self._loop.run_until_complete(self._task)
            self.are_published = True
        except asyncio.CancelledError:
            pass
        except NsqError as failure:
            self.failure = failure
        finally:
            self._loop.close()

    async def _publish(self) -> None:
        from emberq.base.clock import SystemClock
        from emberq.client import Producer
        from emberq.tools.generate_events import publish_events

        async with Producer(self._nsqd) as producer:
            await publish_events(
                self._generator, producer, "clicks", count=self._count, rate=self._rate, clock=SystemClock()
            )


@contextmanager
def _stack(folder: Path, ports: Sequence[int]) -> Iterator[None]:
    """`emberq up`, in a process that does not hear the terminal's Ctrl-C: it is stopped last, or with us if we die."""
    names = ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http")
    process = subprocess.Popen(  # noqa: S603 - our own command
        [
            *(sys.executable, "-m", "emberq.cli.attended", "up", f"--data-path={folder}"),
            *(f"--{name}-port={port}" for name, port in zip(names, ports, strict=True)),
        ],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _await_answer(process, ports[1])
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)


def _await_answer(process: subprocess.Popen[bytes], port: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise CommandError("emberq up did not start", hint="What it wrote above tells why.")
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            time.sleep(LOOK_INTERVAL_S / 10)
        else:
            return
    raise CommandError("emberq up does not answer")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until all are known, so that they differ."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def _summary(terminal: Terminal, table: ProgressTable, generator: ClickGenerator) -> Iterator[None]:
    """A live table where somebody sees it."""
    if not terminal.is_rich:
        yield
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def draw() -> RenderableType:
        made = generator.generated
        return Group(Text(f"\n{made.total:,} events made, {made.broken:,} of them broken", style="bold"), table.drawn())

    with Live(console=terminal.console, get_renderable=draw, refresh_per_second=2):
        yield


def _report(terminal: Terminal, checks: Sequence[Check]) -> int:
    for check in checks:
        if terminal.as_json:
            terminal.write_json({"check": check.what, "expected": check.expected, "found": check.found})
        else:
            mark = "ok   " if check.is_right else "WRONG"
            terminal.write(f"{mark} {check.what}: {check.found:,} of {check.expected:,}")
    if all(check.is_right for check in checks):
        return DONE
    terminal.fail("what came out is not what went in")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
