"""`emberq sql`: Spark SQL over topics and archives, as they are now."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emberq.base.text import one_line
from emberq.cli.argument import topic_name
from emberq.cli.spark_work import (
    add_spark_flags,
    add_time_flags,
    in_thread,
    location,
    nsq_options,
    spark_failures,
    spark_session,
    time_range,
)
from emberq.cli.table import bare_table
from emberq.cli.terminal import DONE, CommandError, CommandParser, Terminal, command_parser, run_command

if TYPE_CHECKING:
    from rich.table import Table

    from emberq.spark.sql import Result, SqlConsole


MAX_ROWS = 1000
PROMPT = "sql> "

EXAMPLES = """\
examples:
  emberq sql --topic clicks 'SELECT page, count(*) FROM clicks GROUP BY page'
  emberq sql --topic clicks --schema 'page STRING, at TIMESTAMP' 'SELECT max(at) FROM clicks'
  emberq sql --topic clicks --archive data/archive 'SELECT count(*) FROM clicks'      all there ever was
  emberq sql --topic clicks --archive data/archive --start 2026-11-15T06:00:00Z --end 2026-11-15T07:00:00Z '...'
  emberq sql --archive data/archive 'SELECT topic, count(*) FROM archive GROUP BY topic'
  emberq sql --topic clicks                   asks for statements, until Ctrl-D

A topic must be journaled. It is a view of its name, with _ for characters that SQL does not allow. Its columns are
those of its JSON, taken from the newest messages or from --schema; --raw gives body and text instead. Messages that do
not fit are counted and are in a view of their own, as clicks_unparsed, with the reason.

The folder of --archive is the view archive. With --topic, too, the topic's view has what is archived and what its
journals have beyond it, each message once. --start and --end read only the hours between.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run SQL; the exit status."""
    return run_command(make_parser(), argv, _sql)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq sql", "Query topics and archives with Spark SQL.", epilog=EXAMPLES)
    parser.add_argument("statement", nargs="?", metavar="SQL")
    parser.add_argument(
        "--topic", action="append", default=[], type=topic_name, metavar="TOPIC", help="query this topic"
    )
    parser.add_argument("--schema", default="", metavar="DDL", help="the columns of the topics' JSON")
    parser.add_argument("--raw", action="store_true", help="take bodies as they are, not as JSON")
    parser.add_argument("--archive", metavar="DIR", help="what `emberq archive` has written")
    add_time_flags(parser)
    parser.add_argument("-n", type=int, default=MAX_ROWS, dest="limit", metavar="N", help="show at most N rows")
    add_spark_flags(parser)
    return parser


async def _sql(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with spark_failures():
        if not arguments.topic and arguments.archive is None:
            hint = "Name a topic with --topic, or a folder with --archive."
            raise CommandError("there is nothing to query", hint=hint)
        await in_thread(lambda stopping: _run(arguments, terminal, stopping))
    return DONE


def _run(arguments: argparse.Namespace, terminal: Terminal, stopping: threading.Event) -> None:
    from emberq.spark.sql import SqlConsole

    with spark_session("emberq sql", arguments, terminal, stopping) as spark:
        console = SqlConsole(spark)
        archive = None if arguments.archive is None else location(arguments.archive)
        if archive is not None:
            console.add_archive(archive)
        for topic in arguments.topic:
            console.add_topic(
                topic,
                access=nsq_options(arguments),
                schema=arguments.schema,
                raw=arguments.raw,
                archive=archive,
                times=time_range(arguments),
            )
        if arguments.statement is not None:
            _answer(console, arguments.statement, max_rows=arguments.limit, terminal=terminal)
        else:
            _converse(console, arguments, terminal, stopping)


def _converse(
    console: SqlConsole, arguments: argparse.Namespace, terminal: Terminal, stopping: threading.Event
) -> None:
    """Ask for statements and run them. A wrong one is reported, and the next asked for."""
    from emberq.spark.sql import StatementError

    while not stopping.is_set():
        try:
            statement = input(PROMPT if sys.stdin.isatty() else "").strip().rstrip(";")
        except EOFError:
            return
        if not statement:
            continue
        try:
            _answer(console, statement, max_rows=arguments.limit, terminal=terminal)
        except StatementError as failure:
            terminal.note(str(failure))


def _answer(console: SqlConsole, statement: str, *, max_rows: int, terminal: Terminal) -> None:
    """Run a statement and write its rows: as a table to a terminal, else as lines of JSON."""
    if terminal.is_rich:
        rows = console.rows(statement, max_rows=max_rows)
        terminal.console.print(_table(rows))
        result: Result[Any] = rows
    else:
        lines = console.json_lines(statement, max_rows=max_rows)
        for line in lines.items:
            terminal.write(line)
        result = lines
    if result.is_cut:
        terminal.note(f"there are more than {max_rows:,} rows; -n shows more")
    for view, left_out in result.unparsed.items():
        terminal.note(
            f"{left_out.count:,} of {left_out.messages:,} messages are not in {view}, as they do not fit its columns; "
            f"the view {left_out.view} has them, with reason and text"
        )


def _table(result: Result[tuple[Any, ...]]) -> Table:
    from rich.text import Text

    table = bare_table()
    for name in result.columns:
        table.add_column(Text(name))
    for row in result.items:
        table.add_row(*(Text("" if value is None else one_line(str(value))) for value in row))
    return table
