"""How the subcommands that use Spark run it: quietly, in a thread, stopped by Ctrl-C in good order.

Spark's calls block, and a batch that has begun should be finished before the end. So the work runs in a thread and gets
an event that is set when it should come to an end; the command ends when the work has.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from emberq.cli.connection_flags import DEFAULT_NSQD_HTTP_ADDRESS
from emberq.cli.terminal import CommandError, Terminal

if TYPE_CHECKING:
    from emberq.spark.quiet_session import Session

_T = TypeVar("_T")


def require_spark() -> None:
    """CommandError if the libraries are not installed."""
    for library in ("pyspark", "pyarrow"):
        if find_spec(library) is None:
            raise CommandError(f"{library} is not installed", hint="pip install 'emberq[spark]'")


def add_master_flag(parser: argparse.ArgumentParser) -> None:
    """Read the flag as `arguments.master`."""
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs: spark://host:7077, yarn, k8s://... (default this machine)"
    )


def nsq_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Where NSQ is, as options of format("nsq"), from --nsqd-http-address and --lookupd-http-address."""
    nsqds, lookupds = arguments.nsqd_http_address, arguments.lookupd_http_address
    if nsqds and lookupds:
        raise CommandError("use --nsqd-http-address or --lookupd-http-address not both")
    if lookupds:
        return {"lookupd": ",".join(lookupds)}
    return {"nsqd": ",".join(nsqds or [DEFAULT_NSQD_HTTP_ADDRESS])}


def start_session(
    name: str, arguments: argparse.Namespace, terminal: Terminal, config: Mapping[str, str] | None = None
) -> Session:
    """A SparkSession that logs nothing, unless --verbose. CommandError if there is no Java."""
    from emberq.spark.error import JavaNotFound
    from emberq.spark.quiet_session import quiet_session

    settings = {"spark.ui.showConsoleProgress": "false", **(config or {})}  # Spark's bars would run over ours
    try:
        terminal.note(f"starting Spark{_hint() if terminal.is_watched else ''}")
        return quiet_session(name, master=arguments.master, is_verbose=arguments.verbose, config=settings)
    except JavaNotFound as failure:
        raise CommandError(str(failure)) from failure


def _hint() -> str:
    from emberq.spark.class_archive import archive_path
    from emberq.spark.java import find_java

    return "" if archive_path(find_java()).is_file() else "; `emberq prepare-spark` makes this a third shorter"


async def in_thread(work: Callable[[threading.Event], _T]) -> _T:
    """What `work` returns. Cancelling sets the event that it got, and waits for its end."""
    stopping = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, stopping))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stopping.set()
        await asyncio.wait([running])
        raise
