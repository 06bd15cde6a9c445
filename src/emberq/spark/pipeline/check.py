"""What is wrong with a pipeline, as far as that can be told without Spark and without NSQ.

`problems_of` names everything that is wrong, not just the first. SQL and schemas are judged by Spark, when the pipeline
is built (`build`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from emberq.base.clock import NS_PER_SECOND
from emberq.base.flag import nearest
from emberq.base.text import parse_duration, quoted
from emberq.spark.error import OptionError
from emberq.spark.option import OPTIONS, SinkSettings, SourceSettings, Use
from emberq.spark.pipeline.model import (
    AVAILABLE_NOW,
    JDBC,
    BadRecords,
    BodyFormat,
    Expectation,
    KeyPath,
    OutputMode,
    Pipeline,
    Problem,
    SchemaEvolution,
    Sink,
    Source,
    Watermark,
    WriteMode,
)
from emberq.wire.parameter import is_valid_name

_SQL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_INTERVAL = re.compile(r"\d+ (second|minute|hour|day)s?")
_SET_ELSEWHERE = {option.name.lower() for option in OPTIONS if option.name in ("topic", "topicPattern")}


def problems_of(pipeline: Pipeline) -> list[Problem]:
    """All problems of a pipeline; none if it can be built."""
    return [
        *_of_the_whole(pipeline),
        *(each for name, source in pipeline.sources.items() for each in _of_source(name, source, pipeline)),
        *(each for name, view in pipeline.views.items() for each in _of_rules(("view", name), view.expect)),
        *(each for name, sink in pipeline.sinks.items() for each in _of_sink(name, sink, pipeline)),
    ]


def trigger_seconds(text: str) -> float | None:
    """The interval of a trigger; None for `available-now`. ValueError if it is neither."""
    if text == AVAILABLE_NOW:
        return None
    interval_ns = parse_duration(text)
    if interval_ns < 0:
        raise ValueError(text)
    return interval_ns / NS_PER_SECOND


def _of_the_whole(pipeline: Pipeline) -> Iterator[Problem]:
    if not pipeline.name:
        yield Problem(("name",), "the pipeline has no name", 'add a line such as name = "clickstream"')
    if not pipeline.checkpoint:
        yield Problem(("checkpoint",), "there is no folder for what it remembers", 'add checkpoint = "data/checkpoint"')
    if not pipeline.sources:
        yield Problem(("source",), "there is nothing to read", "add a table [source.NAME] with a topic")
    if not pipeline.sinks:
        yield Problem(("sink",), "the results go nowhere", "add a table [sink.NAME]")
    if pipeline.nsqd and pipeline.lookupd:
        yield Problem(("lookupd",), "both nsqd and lookupd say where NSQ is", "leave one of them out")
    yield from _of_trigger(("trigger",), pipeline.trigger)
    if pipeline.progress_topic:
        yield from _of_topic(("progress_topic",), pipeline.progress_topic)
    yield from _of_names(pipeline)


def _of_names(pipeline: Pipeline) -> Iterator[Problem]:
    """Sources, tables and views share one set of names: SQL does not tell them apart."""
    seen: dict[str, str] = {}
    for kind, names in (("source", pipeline.sources), ("table", pipeline.tables), ("view", pipeline.views)):
        for name in names:
            if _SQL_NAME.fullmatch(name) is None:
                yield Problem((kind, name), f"{quoted(name)} cannot be used in SQL", "use letters, digits and _")
            elif name.lower() in seen:
                yield Problem((kind, name), f"there is a {seen[name.lower()]} of that name too", "rename one of them")
            seen[name.lower()] = kind
    for name in pipeline.sinks:
        if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
            yield Problem(("sink", name), "the name also is that of a folder", "use letters, digits, _ and -")


def _of_source(name: str, source: Source, pipeline: Pipeline) -> Iterator[Problem]:
    path: KeyPath = ("source", name)
    if bool(source.topic) == bool(source.topic_pattern):
        yield Problem(path, "one of topic and topic_pattern says what to read", 'write topic = "NAME"')
    for topic in source.topic:
        yield from _of_topic((*path, "topic"), topic)
    if source.format is BodyFormat.CSV and not source.schema:
        yield Problem(path, "CSV needs a schema", 'add schema = "user STRING, amount DOUBLE"')
    if source.schema and source.format in (BodyFormat.TEXT, BodyFormat.BINARY):
        column = "text" if source.format is BodyFormat.TEXT else "body"
        yield Problem((*path, "schema"), f"{source.format} has one column, {column}", "leave the schema out")
    if source.schema_evolution is not SchemaEvolution.IGNORE and not source.format.is_json:
        yield Problem((*path, "schema_evolution"), f"{source.format} has no fields with names", "leave it out")
    if source.dedupe and source.watermark is None:
        yield Problem(
            (*path, "dedupe"),
            "without a watermark every row would have to be remembered for ever",
            'add watermark = { column = "at", delay = "10 minutes" }',
        )
    if source.watermark is not None:
        yield from _of_watermark((*path, "watermark"), source.watermark)
    if source.bad_records is not None:
        yield from _of_bad_records((*path, "bad_records"), source.bad_records)
    yield from _of_rules(path, source.expect)
    yield from _of_source_options(path, source, pipeline)


def _of_rules(path: KeyPath, rules: Mapping[str, Expectation]) -> Iterator[Problem]:
    for name, rule in rules.items():
        if _SQL_NAME.fullmatch(name) is None:
            yield Problem((*path, "expect", name), f"{quoted(name)} is no name of a rule", "use letters, digits and _")
        if not rule.sql.strip():
            yield Problem((*path, "expect", name), "it has no condition", 'write { sql = "user IS NOT NULL" }')


def _of_watermark(path: KeyPath, watermark: Watermark) -> Iterator[Problem]:
    if not watermark.column:
        yield Problem(path, "it names no column", 'write { column = "at", delay = "10 minutes" }')
    if _INTERVAL.fullmatch(watermark.delay) is None:
        yield Problem(path, f"the delay {quoted(watermark.delay)} is no interval", 'write it as "10 minutes"')


def _of_bad_records(path: KeyPath, bad: BadRecords) -> Iterator[Problem]:
    if bool(bad.topic) == bool(bad.path):
        yield Problem(path, "either topic or path says where they go", 'write { topic = "NAME.bad" }')
    elif bad.topic:
        yield from _of_topic(path, bad.topic)


def _of_source_options(path: KeyPath, source: Source, pipeline: Pipeline) -> Iterator[Problem]:
    yield from _of_options_set_elsewhere((*path, "options"), source.options)
    if "columns" in {key.lower() for key in (*pipeline.options, *source.options)}:
        yield Problem((*path, "options"), "a pipeline needs all columns of messages", "leave the option columns out")
    if not source.topic and not source.topic_pattern:
        return
    try:
        SourceSettings.of(source_options(pipeline, source), Use.STREAM)
    except OptionError as error:
        yield Problem((*path, "options"), str(error))


def _of_sink(name: str, sink: Sink, pipeline: Pipeline) -> Iterator[Problem]:
    path: KeyPath = ("sink", name)
    known = [*pipeline.sources, *pipeline.views]
    if sink.view not in known:
        yield Problem((*path, "from"), f"there is no source or view {quoted(sink.view)}", _nearest(sink.view, known))
    if sink.topic and (sink.path or sink.format or sink.table):
        yield Problem(path, "a sink is a topic or a path, not both", "make two sinks of it, from the same view")
    elif not (sink.topic or sink.path or sink.format):
        yield Problem(path, "it does not say where rows go", 'add topic = "NAME", path = "DIR" or format = "console"')
    if sink.trigger:
        yield from _of_trigger((*path, "trigger"), sink.trigger)
    if sink.topic:
        yield from _of_topic((*path, "topic"), sink.topic)
        yield from _of_sink_options(path, sink, pipeline)
    if sink.format == JDBC:
        yield from _of_database(path, sink)
    else:
        for key in _OF_DATABASES:
            if getattr(sink, key) not in ("", (), WriteMode.APPEND):
                yield Problem((*path, key), "only a database has it", f'add format = "{JDBC}", or leave it out')
    yield from _of_files(path, sink)


_OF_DATABASES = ("url", "user", "password_env", "password_file", "mode", "key", "jar")
_FILE_FORMATS = ("", "parquet", "json", "csv", "orc", "text", "avro", "xml")
"""Those that are only added to. What else can be at a path, such as Delta, may also be able to change rows."""


def _of_files(path: KeyPath, sink: Sink) -> Iterator[Problem]:
    if sink.path and sink.format in _FILE_FORMATS and sink.output_mode is not OutputMode.APPEND:
        yield Problem(
            (*path, "output_mode"),
            f"files are only added to, and {quoted(sink.output_mode)} would change rows",
            'leave it out; a result with a window and a watermark is written when it is final, with "append"',
        )
    if (sink.partition_by or sink.partition_by_time) and not (sink.path or sink.table):
        yield Problem(path, "partitions are folders, and this sink has no path", "leave partition_by out")
    elif sink.partition_by_time and sink.format not in ("", "parquet"):
        yield Problem(
            (*path, "partition_by_time"),
            f"date and hour are made for Parquet, and this is {sink.format}",
            "make the columns in a view and name them in partition_by",
        )


_POSTGRES = "jdbc:postgresql:"
_SET_FOR_DATABASES = ("url", "dbtable", "query", "user", "driver", "isolationlevel")


def _of_database(path: KeyPath, sink: Sink) -> Iterator[Problem]:
    """Problems of a sink that is a table of a database. `jdbc` looks at its columns, driver and password later."""
    if sink.path:
        yield Problem((*path, "path"), "a database has tables, not paths", "leave it out")
    if not sink.url.startswith(_POSTGRES):
        told = f"{quoted(sink.url)} is not a PostgreSQL" if sink.url else "it does not say which database"
        yield Problem((*path, "url"), told, f'write url = "{_POSTGRES}//HOST/DATABASE"; other databases are not known')
    if "password=" in sink.url.lower():
        yield Problem((*path, "url"), "it has a password, which everyone who reads this file sees", _PASSWORD_REMEDY)
    if not sink.table:
        yield Problem(path, "it does not say which table", 'add table = "NAME"')
    if sink.password_env and sink.password_file:
        yield Problem((*path, "password_env"), "password_file says too where the password is", "leave one of them out")
    if sink.mode is WriteMode.UPSERT and not sink.key:
        yield Problem((*path, "mode"), "it does not say by which columns a row is known", 'add key = ["id"]')
    if sink.key and sink.mode is WriteMode.APPEND:
        yield Problem((*path, "key"), "rows that are appended need none", 'add mode = "upsert", or leave it out')
    if sink.mode is WriteMode.APPEND and sink.output_mode is not OutputMode.APPEND:
        yield Problem(
            (*path, "output_mode"),
            f"with {quoted(sink.output_mode)} rows come again when they change, and each would be another row",
            'add mode = "upsert" and key = [...]',
        )
    for key in sink.options:
        if "password" in key.lower():
            yield Problem((*path, "options", key), "everyone who reads this file would see it", _PASSWORD_REMEDY)
        elif key.lower() in _SET_FOR_DATABASES:
            yield Problem((*path, "options", key), "this is no option here", "there are url, table, user and jar")


_PASSWORD_REMEDY = "name the file or the variable that holds it, with password_file or password_env"  # noqa: S105


def _of_sink_options(path: KeyPath, sink: Sink, pipeline: Pipeline) -> Iterator[Problem]:
    yield from _of_options_set_elsewhere((*path, "options"), sink.options)
    try:
        SinkSettings.of(sink_options(pipeline, sink))
    except OptionError as error:
        yield Problem((*path, "options"), str(error))


def _of_options_set_elsewhere(path: KeyPath, options: Mapping[str, str]) -> Iterator[Problem]:
    for key in options:
        if key.lower() in _SET_ELSEWHERE:
            yield Problem((*path, key), "this is no option here", "write it above, as topic = or topic_pattern =")


def source_options(pipeline: Pipeline, source: Source) -> dict[str, str]:
    """The options of format("nsq") to read a source with."""
    topics = {"topic": ",".join(source.topic)} if source.topic else {"topicPattern": source.topic_pattern}
    return _with_access(pipeline, source.options) | topics


def sink_options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    """The options of format("nsq") to write to the topic of a sink with."""
    return _with_access(pipeline, sink.options) | {"topic": sink.topic}


def _with_access(pipeline: Pipeline, options: Mapping[str, str]) -> dict[str, str]:
    """The options with the pipeline's addresses of NSQ, unless they have their own."""
    has_own = {"nsqd", "lookupd"} & {key.lower() for key in options}
    own = {key: text for key, text in options.items() if key.lower() not in _SET_ELSEWHERE}
    return own if has_own else pipeline.access_options | own


def _of_trigger(path: KeyPath, text: str) -> Iterator[Problem]:
    try:
        trigger_seconds(text)
    except ValueError:
        yield Problem(path, f"{quoted(text)} is no trigger", f'write an interval, as "10s", or "{AVAILABLE_NOW}"')


def _of_topic(path: KeyPath, topic: str) -> Iterator[Problem]:
    if not is_valid_name(topic):
        yield Problem(path, f"{quoted(topic)} is no name of a topic", "use up to 64 of .a-zA-Z0-9_-")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    if found := nearest(name, names):
        return f"did you mean {quoted(found)}?"
    return f"there are: {', '.join(names)}" if names else "add a source"
