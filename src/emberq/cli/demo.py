"""`emberq demo`: a whole NSQ with the clickstream pipeline and made-up visits, live.

Without --count it runs until Ctrl-C. With --count it makes so many visits and compares what came out with what went
in; the exit status says whether they are the same.

The command runs Spark's driver. NSQ and the visits are processes of their own, in sessions of their own. So the
terminal's Ctrl-C reaches only the command, which stops the visits, then the queries, then Spark and NSQ.
"""

from __future__ import annotations

import argparse
import shlex
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
from typing import TYPE_CHECKING, Self

from emberq.cli.argument import positive_count
from emberq.cli.demo_events import EventProcess
from emberq.cli.spark_work import STOP_TIMEOUT_S, add_master_flag, in_thread, require_spark, spark_session
from emberq.cli.terminal import (
    DONE,
    FAILED,
    INTERRUPTED,
    CommandError,
    CommandParser,
    Terminal,
    command_parser,
    run_command,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emberq.spark.demo import Check
    from emberq.spark.pipeline.model import Pipeline
    from emberq.spark.pipeline.report import ProgressTable


QUICK_START = {
    # Halves the time to the first batch: a few hundred rows a second need no highly optimized code.
    # Without the last option there is a fifth of the usual room for compiled code, which is full after a minute.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
    "spark.ui.enabled": "false",
}
DEFAULT_RATE = 200
START_TIMEOUT_S = 60.0
STACK_TIMEOUT_S = 60.0
SPARK_STARTS = "Spark starts"
CATCH_UP_TIMEOUT_S = 600.0
"""Generous: a busy machine may need minutes to start Spark's workers."""
LOOK_INTERVAL_S = 0.05
REDRAWS_PER_SECOND = 2
LOOPBACK = "127.0.0.1"
PORT_NAMES = "nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http"
DEFAULT_PORTS = 4150, 4151, 4160, 4161, 4171


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; the exit status."""
    return run_command(make_parser(), argv, _demo)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq demo", "Run the clickstream pipeline with made-up events.")
    parser.add_argument("file", type=Path, metavar="FILE", help="examples/spark/clickstream.toml, or one like it")
    parser.add_argument("--count", type=positive_count, metavar="N", help="make N events, check what comes out, end")
    parser.add_argument(
        "--rate",
        type=positive_count,
        metavar="N",
        help=f"events a second (default {DEFAULT_RATE}; with --count as fast as possible)",
    )
    parser.add_argument(
        "--data-path",
        type=Path,
        metavar="DIR",
        help="folder for all data (default emberq-data; with --count a folder that is removed at the end)",
    )
    add_master_flag(parser)
    return parser


async def _demo(arguments: argparse.Namespace, terminal: Terminal) -> int:
    require_spark()
    from emberq.spark.error import NsqSparkError

    demo = _Demo(arguments, terminal)
    try:
        return await in_thread(
            demo.run,
            on_stop=lambda: terminal.note("stopping"),
            on_break=demo.stop_nsq,
            patience_s=demo.patience_s,
        )
    except NsqSparkError as failure:
        raise CommandError(str(failure)) from failure


class _Demo:
    """One run of the demo. Owned by the thread of Spark's work; another thread draws the screen and only reads."""

    def __init__(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        from emberq.spark.pipeline.report import ProgressTable

        self._arguments = arguments
        self._terminal = terminal
        self._stopping = threading.Event()
        self._stack: _Stack | None = None
        self._count: int | None = arguments.count
        self._held_ports, self._ports = _hold_ports(len(DEFAULT_PORTS)) if self._count else (ExitStack(), DEFAULT_PORTS)
        self._events = EventProcess(
            f"{LOOPBACK}:{self._ports[0]}", count=self._count, rate=arguments.rate or self._count or DEFAULT_RATE
        )
        self._table: ProgressTable = ProgressTable()
        self._started_s = time.monotonic()
        self._phase = ""
        """What the run waits for; empty when everything runs."""

    def patience_s(self) -> float:
        """How long a stop may take from now on: there is nothing to bring to a good end before Spark has started."""
        return 0.0 if self._phase == SPARK_STARTS else STOP_TIMEOUT_S

    def stop_nsq(self) -> None:
        """Tell NSQ to stop at once: the queries, which would need it to end in good order, are broken off."""
        if self._stack is not None:
            self._stack.ask_to_stop()

    def run(self, stopping: threading.Event) -> int:
        """The exit status. The demo ends when `stopping` is set."""
        self._stopping = stopping
        with ExitStack() as resources:
            resources.enter_context(self._held_ports)
            folder = self._folder(resources)
            pipeline = self._pipeline(folder)
            self._stack = stack = resources.enter_context(_Stack(folder, self._ports))
            try:
                with self._screen():
                    self._run_pipeline(pipeline, stack, folder)
            except Exception:
                if not self._stopping.is_set():  # else Java was killed, and every call of Spark fails
                    raise
            made = self._events.generated
            if self._stopping.is_set():
                self._terminal.note(f"stopped; {made.total:,} events were made, everything is kept in {folder}")
                return INTERRUPTED
            found_bad = self._table.bad_count()
            self._terminal.note(f"{made.total:,} events made, {made.broken:,} of them broken; {found_bad:,} found bad")
            from emberq.spark.demo import check_clickstream

            checks = check_clickstream(pipeline, good=made.good, broken=made.broken, pages=made.pages)
        return _report(self._terminal, checks)

    def _folder(self, resources: ExitStack) -> Path:
        if self._count and self._arguments.data_path is None:
            return Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="emberq-demo-")))
        folder: Path = self._arguments.data_path or Path("emberq-data")
        return folder.absolute()

    def _pipeline(self, folder: Path) -> Pipeline:
        from emberq.spark.pipeline.toml_file import read_pipeline

        file: Path = self._arguments.file
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as failure:
            raise CommandError(str(failure)) from failure
        pipeline = read_pipeline(text, file=str(file), folder=folder).pipeline
        return replace(pipeline, nsqd=(f"{LOOPBACK}:{self._ports[1]}",), lookupd=())

    def _run_pipeline(self, pipeline: Pipeline, stack: _Stack, folder: Path) -> None:
        from concurrent.futures import ThreadPoolExecutor, wait

        from emberq.spark.pipeline.run import PipelineRun

        is_stopping = self._stopping.is_set
        with ThreadPoolExecutor(1, "emberq-open") as beside:
            opened = beside.submit(self._open, stack, folder)  # beside Spark: each takes seconds to start
            try:
                self._phase = SPARK_STARTS
                with spark_session(
                    "emberq demo",
                    self._arguments,
                    self._terminal,
                    self._stopping,
                    config=QUICK_START | dict(pipeline.spark),
                ) as spark:
                    opened.result()
                    run = PipelineRun(pipeline, spark, on_progress=self._table.add)
                    try:
                        self._phase = "the queries start"
                        run.start(until=is_stopping)
                        self._phase = ""
                        run.wait(until=self._done_when(pipeline))
                    finally:
                        self._events.stop()
                        run.stop()
                        if is_stopping():
                            stack.ask_to_stop()  # it ends while Java does
            finally:
                wait([opened])
                self._events.stop()

    def _open(self, stack: _Stack, folder: Path) -> None:
        """Start the events when NSQ answers, and show where everything is."""
        stack.await_answer(self._stopping)
        if self._stopping.is_set():
            return
        self._events.start()
        if not self._terminal.as_json:
            for line in _banner(self._ports, folder, is_endless=self._count is None):
                self._terminal.show(line)

    def _done_when(self, pipeline: Pipeline) -> Callable[[], bool]:
        """Whether the run is to end: it was told to stop or, with a count, every query has read the last event."""
        from emberq.spark.pipeline.checkpoint import pipeline_status

        query_count = len(pipeline.sinks) + sum(source.bad_records is not None for source in pipeline.sources.values())
        deadline_s = time.monotonic() + CATCH_UP_TIMEOUT_S

        def is_done() -> bool:
            if self._events.failure:
                raise CommandError(f"events could not be published: {self._events.failure}")
            if self._stopping.is_set() or self._count is None or not self._events.are_published:
                return self._stopping.is_set()
            if time.monotonic() > deadline_s:
                raise CommandError(f"the pipeline did not catch up within {CATCH_UP_TIMEOUT_S:g} s")
            statuses = pipeline_status(pipeline)
            return len(statuses) == query_count and all(status.lag == 0 for status in statuses)

        return is_done

    # What is shown

    @contextmanager
    def _screen(self) -> Iterator[None]:
        """Show the live table while the block runs, if standard error is a terminal."""
        if not self._terminal.is_watched:
            yield
            return
        from rich.live import Live

        with Live(
            console=self._terminal.error_console, get_renderable=self._drawn, refresh_per_second=REDRAWS_PER_SECOND
        ):
            yield

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        made = self._events.generated
        lines: list[RenderableType] = [Text(f"\n{made.total:,} events made, {made.broken:,} of them broken", "bold")]
        waited_for = self._phase or ("" if self._table.row_count else "the first batches are under way")
        if waited_for and not self._stopping.is_set():
            elapsed_s = time.monotonic() - self._started_s
            lines.append(Text(f"{waited_for}: {elapsed_s:.0f} s since the start, about 30 s to the first results"))
        if not self._table.is_empty:
            lines.append(self._table.drawn())
        return Group(*lines)


class _Stack:
    """`emberq up` in a process that the terminal's Ctrl-C does not reach. It ends last, or when this process dies."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self._command = [
            *(sys.executable, "-m", "emberq.cli.attended", "up", f"--data-path={folder}"),
            *(f"--{name}-port={port}" for name, port in zip(PORT_NAMES, ports, strict=True)),
        ]
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        _check_free(self._ports)
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        return self

    def __exit__(self, *_raised: object) -> None:
        assert self._process is not None  # noqa: S101 - it was entered
        self.ask_to_stop()
        self._process.wait(STACK_TIMEOUT_S)

    def ask_to_stop(self) -> None:
        """Tell NSQ to stop, without waiting for it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def await_answer(self, stopping: threading.Event) -> None:
        """Returns when NSQ serves, or `stopping` is set. CommandError if it cannot be started."""
        assert self._process is not None  # noqa: S101 - it was entered
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not stopping.wait(LOOK_INTERVAL_S):
            if self._process.poll() is not None:
                raise CommandError("emberq up did not start", hint="What it wrote above tells why.")
            if time.monotonic() > deadline_s:
                raise CommandError("emberq up does not answer")
            if all(_is_served(port) for port in self._ports):
                return


def _is_served(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def _check_free(ports: Sequence[int]) -> None:
    for name, port in zip(PORT_NAMES, ports, strict=True):
        if _is_served(port):
            raise CommandError(
                f"port {port}, which {name.partition('-')[0]} would listen on, is in use",
                hint="Stop the other NSQ on this machine first. Is an `emberq up` or `make run` still running?",
            )


def _hold_ports(count: int) -> tuple[ExitStack, Sequence[int]]:
    """Ports that no process listens on, and that the system gives to no other process until the stack is closed.

    They are bound and not listened on, with SO_REUSEADDR, so that the daemons may still listen on them.
    """
    with ExitStack() as held:
        holders = [held.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((LOOPBACK, 0))
        return held.pop_all(), [holder.getsockname()[1] for holder in holders]


def _banner(ports: Sequence[int], folder: Path, *, is_endless: bool) -> list[str]:
    """Where everything is, what to try, how to stop."""
    nsqd_tcp, nsqd_http, lookupd_tcp, lookupd_http, admin = ports
    lines = [
        f"NSQ is up; its data is in {folder}.",
        f"  nsqadmin    http://{LOOPBACK}:{admin} (the queries: /pipelines)",
        f"  nsqd        tcp {LOOPBACK}:{nsqd_tcp}, http://{LOOPBACK}:{nsqd_http}",
        f"  nsqlookupd  tcp {LOOPBACK}:{lookupd_tcp}, http://{LOOPBACK}:{lookupd_http}",
    ]
    if not is_endless:
        return lines
    emberq = shlex.quote(_called_as())
    return [
        *lines,
        "Try, in another terminal:",
        f"  {emberq} tail clicks.per-minute",
        f"  {emberq} sql --topic clicks 'SELECT page, count(*) FROM clicks GROUP BY 1'",  # noqa: S608 - to read
        "Ctrl-C stops everything.",
    ]


def _called_as() -> str:
    """The `emberq` command as the user can call it from the same folder."""
    command = Path(sys.argv[0])
    if command.name != "emberq":
        return "emberq"
    try:
        return str(command.relative_to(Path.cwd()))
    except ValueError:
        return str(command)


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
