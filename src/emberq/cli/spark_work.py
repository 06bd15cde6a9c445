"""How subcommands run Spark: quietly, in a thread, stopped by Ctrl-C at any moment, with /metrics if wanted.

Spark's calls block, and a batch that has begun should be finished. So the work runs in a thread (`in_thread`) and gets
an event that is set when it should end. Work that has not ended a few seconds later (Java still starts, or a batch is
long) is broken off: Java is killed, and every call of Spark fails. Nothing is lost: a query goes on from its checkpoint
when it is run again. A command returns when Java and all Python workers are gone.

/metrics is served by a small HTTP server on the command's own event loop, so a scrape is answered whatever the thread
does:

    async with metrics_endpoint(arguments.metrics_address, metrics.render, terminal):
        await in_thread(work)
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from emberq.base.address import AddressError, TcpAddress, parse_tcp_address
from emberq.base.child_process import descendants, end_processes
from emberq.base.clock import NS_PER_SECOND, SystemClock
from emberq.base.text import parse_moment, quoted
from emberq.cli.argument import (
    add_lookupd_flag,
    add_nsqd_http_flag,
    add_security_flags,
    addresses,
    auth_secret,
    lookupd_secret,
)
from emberq.cli.terminal import CommandError, CommandParser, Terminal

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from emberq.base.metrics import DaemonScrape
    from emberq.http.message import Request, Response
    from emberq.spark.archive import TimeRange
    from emberq.spark.pipeline.report import PipelineMetrics
    from emberq.spark.session import Session


STOP_TIMEOUT_S = 2.0
"""How long work may take to end by itself. A batch of a stream takes a second."""
JAVA_TIMEOUT_S = 0.7
"""How long Java may take to end when it is told to."""
END_TIMEOUT_S = 4.3
"""How long all of it may take: work that is broken off has to notice that Java is gone. After that it is left alone;
its thread ends with the process."""
BREAK_INTERVAL_S = 0.1

_T = TypeVar("_T")


def require_spark() -> None:
    """CommandError unless PySpark and PyArrow are installed."""
    for library in ("pyspark", "pyarrow"):
        if find_spec(library) is None:
            raise CommandError(f"{library} is not installed", hint="pip install 'emberq[spark]'")


@contextmanager
def spark_failures(*, hint: str = "") -> Iterator[None]:
    """CommandError, with the hint, if the block fails; and without the block, unless Spark is installed."""
    require_spark()
    from emberq.spark.error import NsqSparkError

    try:
        yield
    except NsqSparkError as failure:
        raise CommandError(str(failure), hint=hint) from failure


def add_spark_flags(parser: CommandParser) -> None:
    """Where Spark runs, where NSQ is and how it is reached. Read them with `spark_session` and `nsq_options`."""
    add_master_flag(parser)
    add_nsqd_http_flag(parser)
    add_lookupd_flag(parser)
    add_security_flags(parser, asks_lookupd=True)


def add_master_flag(parser: argparse.ArgumentParser) -> None:
    """Read the flag as `arguments.master`."""
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs: spark://host:7077, yarn, k8s://... (default this machine)"
    )


def add_time_flags(parser: argparse.ArgumentParser) -> None:
    """From when to when messages were published. Read them with `time_range`."""
    parser.add_argument("--start", type=_moment, metavar="TIME", help="published then or later: 2026-11-15T06:00:00Z")
    parser.add_argument("--end", type=_moment, metavar="TIME", help="published before then")


def _moment(text: str) -> str:
    if parse_moment(text) is None:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no moment; write 2026-11-15T06:00:00Z")
    return text


def time_range(arguments: argparse.Namespace) -> TimeRange:
    """What `--start` and `--end` say."""
    from emberq.spark.archive import TimeRange

    return TimeRange(
        start_ns=parse_moment(arguments.start) if arguments.start else None,
        end_ns=parse_moment(arguments.end) if arguments.end else None,
    )


def nsq_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Where NSQ is, how it is reached and what it is shown, as options of format("nsq").

    CommandError if a file cannot be used.
    """
    asked = addresses(arguments)
    where = {"lookupd": ",".join(asked.lookupds)} if asked.lookupds else {"nsqd": ",".join(asked.nsqds)}
    return where | tls_options(arguments) | secret_options(arguments)


def tls_options(arguments: argparse.Namespace) -> dict[str, str]:
    """What the flags say of TLS, as options of format("nsq"). With any of them nsqds are asked by HTTPS alone."""
    files = {"tlsCaFile": "tls_root_ca_file", "tlsCertFile": "tls_cert", "tlsKeyFile": "tls_key"}
    given = {name: getattr(arguments, key) for name, key in files.items()}
    options = {name: str(path.absolute()) for name, path in given.items() if path is not None}
    if arguments.tls_insecure:
        options["tlsVerify"] = "false"
    return {"tls": "true", **options} if options or arguments.tls else {}


def secret_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The secrets that the flags or the environment hold, as options of format("nsq")."""
    secrets = {"authSecret": auth_secret(arguments), "lookupdSecret": lookupd_secret(arguments)}
    return {name: secret.decode("latin-1") for name, secret in secrets.items() if secret}


def location(path: str) -> str:
    """A URL as it is, a path of this machine in full: Spark's working folder is its own."""
    return path if "://" in path else str(Path(path).absolute())


@contextmanager
def spark_session(
    name: str,
    arguments: argparse.Namespace,
    terminal: Terminal,
    stopping: threading.Event,
    *,
    config: Mapping[str, str] | None = None,
) -> Iterator[Session]:
    """A SparkSession while the block runs; it logs nothing without --verbose. CommandError if there is no Java."""
    from emberq.spark.error import JavaNotFoundError
    from emberq.spark.session import close_session, quiet_session

    settings = {"spark.ui.showConsoleProgress": "false", **(config or {})}  # Spark's progress bars would overwrite ours
    with _java_folder(terminal, stopping) as folder:
        if stopping.is_set():
            raise CommandError("stopped before Spark was started")
        terminal.note(f"starting Spark{_hint() if terminal.is_watched else ''}")
        try:
            spark = quiet_session(
                name, master=arguments.master, is_verbose=arguments.verbose, config=settings, folder=folder
            )
        except JavaNotFoundError as failure:
            raise CommandError(str(failure)) from failure
        try:
            yield spark
        finally:
            close_session(spark, timeout_s=JAVA_TIMEOUT_S)
            end_spark()


@contextmanager
def _java_folder(terminal: Terminal, stopping: threading.Event) -> Iterator[Path]:
    """A folder for Java's temporary files and its log. The log is kept if the block fails by itself."""
    from emberq.spark.session import LOG_NAME

    folder = Path(tempfile.mkdtemp(prefix="emberq-spark-"))
    log = folder / LOG_NAME
    try:
        yield folder
    except Exception:
        if not stopping.is_set() and log.is_file() and log.stat().st_size:
            kept = log.replace(folder.with_suffix(".log"))
            terminal.note(f"what Java wrote is in {kept}")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a Java that was killed leaves much behind


def end_spark(*, patience_s: float = JAVA_TIMEOUT_S) -> None:
    """End Java and its workers, if there are any. They are killed if they take longer than `patience_s`.

    They are the processes below this one that share its session. Other processes that a command starts have sessions of
    their own, so that a terminal's Ctrl-C does not reach them.
    """
    end_processes(descendants(same_session=True), patience_s=patience_s)


def _hint() -> str:
    from emberq.spark.java import archive_path, find_java

    return "" if archive_path(find_java()).is_file() else "; `emberq prepare-spark` makes this a third shorter"


async def in_thread(
    work: Callable[[threading.Event], _T],
    *,
    on_stop: Callable[[], None] = lambda: None,
    on_break: Callable[[], None] = lambda: None,
    patience_s: Callable[[], float] = lambda: STOP_TIMEOUT_S,
) -> _T:
    """What `work` returns. When cancelled, set the event that `work` got, call `on_stop`, and wait for the end.

    Work that takes longer to end than `patience_s` says then is broken off, and `on_break` is called.
    """
    import asyncio

    stopping = threading.Event()
    running = _started(work, stopping)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stopping.set()
        deadline_s = time.monotonic() + END_TIMEOUT_S
        on_stop()
        try:
            await asyncio.wait([running], timeout=patience_s())
        finally:  # a second Ctrl-C ends the waiting
            if not running.done():
                with _without_warnings():
                    on_break()
                    await _break_off(running, deadline_s=deadline_s)
        raise


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Log no warning while the block runs: what fails in it fails because it was broken off."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


async def _break_off(running: asyncio.Future[_T], *, deadline_s: float) -> None:
    """Kill Spark until the work has ended, and what it has started last: it may be about to start Java."""
    import asyncio

    while not running.done() and time.monotonic() < deadline_s:
        end_spark(patience_s=0)  # Java had its time
        await asyncio.wait([running], timeout=BREAK_INTERVAL_S)
    end_spark(patience_s=0)


def _started(work: Callable[[threading.Event], _T], stopping: threading.Event) -> asyncio.Future[_T]:
    """The work's result. Its thread does not keep the process alive, because a call in it may hang for ever."""
    import asyncio
    from concurrent.futures import Future

    result: Future[_T] = Future()

    def run() -> None:
        try:
            result.set_result(work(stopping))
        except BaseException as failure:  # noqa: BLE001 - raised again where the result is awaited
            result.set_exception(failure)

    threading.Thread(target=run, name="emberq-spark", daemon=True).start()
    awaited = asyncio.wrap_future(result)
    awaited.add_done_callback(lambda done: done.cancelled() or done.exception())  # if it is not awaited
    return awaited


# /metrics

Render: TypeAlias = "Callable[[DaemonScrape], bytes]"
"""The text of all metrics, those of the server itself among them."""


def add_metrics_flag(parser: argparse.ArgumentParser) -> None:
    """Read the flag as `arguments.metrics_address`."""
    parser.add_argument(
        "--metrics-address",
        type=_tcp_address,
        metavar="HOST:PORT",
        help="serve /metrics there, for Prometheus (default not at all)",
    )


@asynccontextmanager
async def metrics_endpoint(address: str | None, render: Render, terminal: Terminal) -> AsyncIterator[None]:
    """Serve /metrics while the block runs, if there is an address. CommandError if it cannot be listened on."""
    import asyncio

    from emberq.base.daemon import Lag, LoopTimers
    from emberq.base.listener import Listener, ListenError
    from emberq.base.metrics import CONTENT_TYPE, DaemonScrape
    from emberq.base.timers import Timers
    from emberq.http.message import plain
    from emberq.http.router import Route, Router
    from emberq.http.server import HttpServer

    if address is None:
        yield
        return
    clock, timers = SystemClock(), Timers()
    start_time_s = clock.wall_ns() // NS_PER_SECOND

    def metrics(_request: Request) -> Response:
        scrape = DaemonScrape(
            start_time_s=start_time_s,
            tcp_connection_count=0,
            http_connection_count=http.connection_count,
            lag=Lag(),  # nothing else is done on this loop
        )
        return plain(render(scrape), content_type=CONTENT_TYPE)

    http = HttpServer(Router([Route("GET", "/metrics", metrics, quiet=True)]), clock=clock, timers=timers)
    listener = Listener(address, http.make_protocol, label="metrics")
    try:
        await listener.bind()
    except ListenError as failure:
        raise CommandError(f"--metrics-address: {failure}", hint="Is the port free?") from failure
    loop_timers = LoopTimers(asyncio.get_running_loop(), timers, clock)
    loop_timers.start()
    await listener.serve()
    where = TcpAddress(*cast(tuple[str, int], listener.address))  # the flag takes no Unix socket
    terminal.note(f"metrics at http://{where}/metrics")
    try:
        yield
    finally:
        await listener.close()
        http.close()
        loop_timers.stop()


async def run_with_metrics(
    arguments: argparse.Namespace, terminal: Terminal, work: Callable[[threading.Event, PipelineMetrics], None]
) -> None:
    """Run a pipeline in a thread, with /metrics of its queries at --metrics-address."""
    from emberq.spark.pipeline.report import PipelineMetrics

    metrics = PipelineMetrics(clock=SystemClock())
    async with metrics_endpoint(arguments.metrics_address, metrics.render, terminal):
        await in_thread(lambda stopping: work(stopping, metrics))


def _tcp_address(text: str) -> str:
    try:
        return str(parse_tcp_address(text))
    except AddressError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from wrong
