"""`emberq prepare-spark`: have Java archive Spark's classes, so that Spark starts faster."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberq.cli.spark_work import in_thread, spark_failures
from emberq.cli.terminal import DONE, CommandParser, Terminal, command_parser, run_command

if TYPE_CHECKING:
    from emberq.spark.java import Java


EPILOG = """\
It takes a minute or two, once for each Java and each Spark on a machine: a small pipeline runs against an nsqd of its
own while Java notes what is loaded. From then on every emberq command that uses Spark, and emberq.spark.session(),
starts with the archive. To go back, delete the file that it names.
"""
LOCAL = "local[2]"


def main(argv: Sequence[str] | None = None) -> int:
    """Make the archive; the exit status."""
    return run_command(make_parser(), argv, _prepare)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq prepare-spark", "Make Spark start a third sooner from now on.", epilog=EPILOG)
    parser.add_argument("--force", action="store_true", help="make the archive again although it exists")
    return parser


async def _prepare(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with spark_failures():
        from emberq.spark.java import archive_path, find_java

        java = find_java()
        path = archive_path(java)
        if path.is_file() and not arguments.force:
            return _report(path, terminal, f"that was done: {path}", is_new=False)
        path.unlink(missing_ok=True)  # so that Java does not start with the old archive
        await in_thread(lambda _stopping: _make(java, terminal, is_verbose=arguments.verbose))
    text = f"Spark starts sooner from now on, thanks to {path.stat().st_size / 1e6:,.0f} MB in {path}"
    return _report(path, terminal, text, is_new=True)


def _report(path: Path, terminal: Terminal, text: str, *, is_new: bool) -> int:
    if terminal.as_json:
        terminal.write_json({"archive": str(path), "bytes": path.stat().st_size, "is_new": is_new})
    else:
        terminal.note(text)
    return DONE


def _make(java: Java, terminal: Terminal, *, is_verbose: bool) -> None:
    from emberq.spark.java import write_archive

    with tempfile.TemporaryDirectory(prefix="emberq-prepare-") as folder:
        class_list = Path(folder) / "classes"
        terminal.note("1 of 2: running Spark once, to see what it loads")
        class_path = _record(class_list, Path(folder), is_verbose=is_verbose)
        terminal.note("2 of 2: writing the archive")
        write_archive(java, class_list=class_list, class_path=class_path)


def _record(class_list: Path, folder: Path, *, is_verbose: bool) -> str:
    """Run a bit of everything while Java lists its classes; Java's class path."""
    from emberq.embedded import EmbeddedThread
    from emberq.spark.demo import BODIES, TOPIC, exercise
    from emberq.spark.java import class_path_of, recording
    from emberq.spark.session import close_session, quiet_session
    from emberq.sync import Producer

    with EmbeddedThread(with_lookupd=False, journal=True) as nsq:
        (nsqd,) = nsq.nsqd_http_addresses
        with Producer(nsq.nsqd_tcp_addresses) as producer:
            producer.publish_many(TOPIC, BODIES)
        spark = quiet_session("emberq prepare-spark", master=LOCAL, is_verbose=is_verbose, config=recording(class_list))
        try:
            exercise(spark, nsqd=nsqd, folder=str(folder))
            return class_path_of(spark)
        finally:
            close_session(spark)
