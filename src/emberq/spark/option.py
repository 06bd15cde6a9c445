"""The options of format("nsq"), and the settings they make.

`OPTIONS` is the one table from which options are parsed, checked and documented. An option is written as Spark's own
are, `startingOffsets`, and case does not matter. An unknown option is refused with the nearest name that exists: a
misspelt option that is quietly ignored is a bug found in production.

`SourceSettings` and `SinkSettings` are the options of one read or write, checked together. They are pickled into every
task, so they hold paths and texts, no sockets.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from emberq.base.clock import NS_PER_SECOND
from emberq.base.flag import nearest
from emberq.base.text import parse_duration, quoted
from emberq.spark.error import DataLossError, OptionError
from emberq.spark.journal_offset import Start, parse_start
from emberq.spark.nsqd_http import Access
from emberq.spark.schema import COLUMNS, HEADERS
from emberq.wire.parameter import is_valid_name

_log = logging.getLogger(__name__)

# One option.


class Use(enum.Flag):
    """Where an option applies."""

    BATCH = enum.auto()
    STREAM = enum.auto()
    SINK = enum.auto()
    READ = BATCH | STREAM
    ALL = READ | SINK


class Mode(enum.StrEnum):
    """How messages come to Spark."""

    AUTO = "auto"
    JOURNAL = "journal"
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its name, what it is for, how its text becomes a value."""

    name: str
    use: Use
    parse: Callable[[str], Any] = str
    default: str | None = None
    """The text of an option that is not given. None: there is no default, and the value is None."""
    help: str


def _list(text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(",") if item.strip())
    if not items:
        raise ValueError("it is empty")
    return items


def _addresses(text: str) -> tuple[str, ...]:
    addresses = _list(text)
    for address in addresses:
        if re.fullmatch(r"(https?://)?(\[[^\]]+\]|[^/:\s]+):[0-9]{1,5}/?", address) is None:
            raise ValueError(f"{quoted(address)} is not of the form host:port")
    return tuple(dict.fromkeys(address.rstrip("/") for address in addresses))


def _name(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError(f"{quoted(text)} is not a name that NSQ allows: up to 64 of the characters .a-zA-Z0-9_-")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_name(name) for name in _list(text)))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from error
    return text


def _mode(text: str) -> Mode:
    try:
        return Mode(text.lower())
    except ValueError:
        raise ValueError(f"{quoted(text)} is not one of {', '.join(Mode)}") from None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{quoted(text)} is neither true nor false")
    return text.lower() == "true"


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{quoted(text)} is not a whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        duration_ns = parse_duration(text)
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a duration such as 500ms, 10s or 1m30s") from None
    if duration_ns <= 0:
        raise ValueError("it must be above 0")
    return duration_ns / NS_PER_SECOND


def _columns(text: str) -> tuple[str, ...]:
    """In the order that rows have them."""
    wanted = _list(text)
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown:
        raise ValueError(f"there is no column {quoted(unknown[0])}; there are: {', '.join(COLUMNS)}")
    return tuple(name for name in COLUMNS if name in wanted)


# The table.

OPTIONS: tuple[Option, ...] = (
    Option(
        name="topic",
        use=Use.ALL,
        parse=_names,
        help="The topic to read, or several with commas between them. For the sink: the one to write to; without it, "
        "the column `topic` says it of each row.",
    ),
    Option(
        name="topicPattern",
        use=Use.READ,
        parse=_pattern,
        help="Instead of `topic`: a regular expression; topics whose whole name it matches are read, also those that "
        "appear later.",
    ),
    Option(
        name="nsqd",
        use=Use.ALL,
        parse=_addresses,
        help="The HTTP addresses of the nsqds, as `host:4151` with commas between them.",
    ),
    Option(
        name="lookupd",
        use=Use.ALL,
        parse=_addresses,
        help="Instead of `nsqd`: the HTTP addresses of the nsqlookupds that know them, as `host:4161`.",
    ),
    Option(
        name="mode",
        use=Use.READ,
        parse=_mode,
        default="auto",
        help="`journal` reads the journals of topics, in parallel and exactly once. `channel` consumes a channel, as "
        "any nsqd has it. `auto` takes the journals if every nsqd has one for every topic.",
    ),
    Option(
        name="channel",
        use=Use.READ,
        parse=_name,
        help="In journal mode: a channel that follows what a stream has committed. Retention keeps what it has not "
        "passed, and its depth is the stream's lag. In channel mode: the one to consume, by this query alone.",
    ),
    Option(
        name="spool",
        use=Use.STREAM,
        help="In channel mode: a folder for messages on their way, the same for the driver and all executors. It "
        "belongs to the checkpoint; each query has its own.",
    ),
    Option(
        name="startingOffsets",
        use=Use.READ,
        parse=parse_start,
        default="earliest",
        help="Where to begin: `earliest`, `latest`, a time such as `2025-01-31T12:00:00Z`, or JSON: "
        '`{"host:4151": {"clicks": 1200}}` for offsets (`"*"` stands for every nsqd that is not named) or '
        '`{"clicks": "2025-01-31T12:00:00Z", "orders": "latest"}` for topics, where what is not named begins at the '
        "earliest. A stream that has a checkpoint goes on from there.",
    ),
    Option(
        name="endingOffsets",
        use=Use.BATCH,
        parse=parse_start,
        default="latest",
        help="Where to end, exclusive; spelled as `startingOffsets`, where JSON leaves out what is not to be read.",
    ),
    Option(
        name="columns",
        use=Use.READ,
        parse=_columns,
        default=",".join(COLUMNS),
        help="The columns that rows have, with commas between them. Fewer are read faster, above all `body` alone: "
        "Spark does not tell a source in Python which columns a query uses.",
    ),
    Option(
        name="includeHeaders",
        use=Use.READ,
        parse=_boolean,
        default="false",
        help="Whether rows have one more column, `headers`: what producers have put beside the body "
        "(`ClientConfig(envelope=True)`), as a map of texts. `body` is then the body alone. Messages without an "
        "envelope are as they were, and their headers are null.",
    ),
    Option(
        name="maxRowsPerTrigger",
        use=Use.STREAM,
        parse=_positive,
        help="How many rows a micro-batch has at most, shared out by what waits in each journal.",
    ),
    Option(
        name="maxBytesPerTrigger",
        use=Use.STREAM,
        parse=_positive,
        help="How many bytes a micro-batch has at most, by the average size of messages in a journal. Journals only.",
    ),
    Option(
        name="minRowsPerTrigger",
        use=Use.STREAM,
        parse=_positive,
        help="A micro-batch waits until there are so many rows, but no longer than `maxTriggerDelay`. The first one "
        "does not wait, nor does a query that reads what is there and ends. Journals only.",
    ),
    Option(
        name="maxTriggerDelay",
        use=Use.STREAM,
        parse=_seconds,
        default="15m",
        help="With `minRowsPerTrigger`: how long after the batch before fewer rows are read, too.",
    ),
    Option(
        name="rowsPerPartition",
        use=Use.READ,
        parse=_positive,
        default="100000",
        help="More rows of one journal than this are read by several tasks.",
    ),
    Option(
        name="minPartitions",
        use=Use.READ,
        parse=_positive,
        default="1",
        help="Use at least so many tasks, if there are as many rows.",
    ),
    Option(
        name="failOnDataLoss",
        use=Use.READ,
        parse=_boolean,
        default="true",
        help="Whether a query fails when messages are gone before they were read: removed by retention, damaged on "
        "disk, or their topic deleted. If not, it goes on with what is there, and logs it.",
    ),
    Option(
        name="fetchBytes",
        use=Use.READ,
        parse=_positive,
        default="4194304",
        help="How much a task asks an nsqd for at a time.",
    ),
    Option(
        name="discoveryInterval",
        use=Use.STREAM,
        parse=_seconds,
        default="10s",
        help="How often a stream looks for nsqds and topics that are new.",
    ),
    Option(
        name="maxBodyBytes",
        use=Use.SINK,
        parse=_positive,
        default="2097152",
        help="How large one MPUB may be; nsqd takes up to its `--max-body-size`. What a task writes to a topic in a "
        "micro-batch is stored as a whole or not at all if it fits into one.",
    ),
    Option(
        name="writeId",
        use=Use.SINK,
        help="For a batch write: a name for it. What was written under the same name already is not stored again, if "
        "the topic is journaled. Meant for `foreachBatch`, as the name of the query with the number of the batch; a "
        "stream that writes by itself needs none.",
    ),
    Option(
        name="tls",
        use=Use.ALL,
        parse=_boolean,
        default="false",
        help="Whether to talk HTTPS. The addresses in `nsqd` and `lookupd` are then those for HTTPS.",
    ),
    Option(
        name="tlsCaFile",
        use=Use.ALL,
        help="Certificates of the authorities to trust, instead of the system's. This and the next two are paths that "
        "must exist on the driver and on every executor.",
    ),
    Option(name="tlsCertFile", use=Use.ALL, help="The certificate to show, if nsqd wants one."),
    Option(name="tlsKeyFile", use=Use.ALL, help="Its key, if that is not in the same file."),
    Option(
        name="tlsVerify",
        use=Use.ALL,
        parse=_boolean,
        default="true",
        help="Whether the certificate of a server must be valid for its name.",
    ),
    Option(
        name="authSecret",
        use=Use.ALL,
        help="The secret to show to nsqds that run with `--http-secret-file` or `--auth-http-api`.",
    ),
    Option(
        name="lookupdSecret",
        use=Use.ALL,
        help="The secret to show to nsqlookupds that run with `--http-secret-file`. Without it they are shown "
        "`authSecret`.",
    ),
    Option(
        name="requestTimeout", use=Use.ALL, parse=_seconds, default="30s", help="How long an answer may be in coming."
    ),
    Option(
        name="retryTimeout",
        use=Use.ALL,
        parse=_seconds,
        default="60s",
        help="For how long a task tries again when an nsqd does not answer, before Spark is told that it failed.",
    ),
)
"""Every option there is."""


# Parsing.

SPARKS_OWN = {"checkpointlocation", "queryname", "asyncprogresstrackingenabled"}
"""Options of Spark itself that it passes on, in lower case."""

ELSEWHERE = {
    "archive": "a source written in Python cannot read with Spark's own Parquet reader; "
    "emberq.spark.read_topic(spark, options, archive=PATH) gives archive and journals as one DataFrame",
}
"""What one may look for among the options, in lower case, and where it is to be had."""


def columns_in(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that options ask for, whatever they are for. OptionError if one does not exist."""
    texts = {name.lower(): text for name, text in given.items()}
    shaping = [option for option in OPTIONS if option.name in ("columns", "includeHeaders")]
    return _columns_of({option.name: _value(option, texts.get(option.name.lower())) for option in shaping})


def _columns_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    columns: tuple[str, ...] = values["columns"]
    return (*columns, HEADERS) if values["includeHeaders"] else columns


def parse_options(given: Mapping[str, str], use: Use) -> dict[str, Any]:
    """The value of every option of this use, by name. OptionError if one given is wrong."""
    known = {option.name.lower(): option for option in OPTIONS}
    texts: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        if name.lower() in ELSEWHERE:
            raise OptionError(f'option "{name}": {ELSEWHERE[name.lower()]}')
        option = known.get(name.lower())
        if option is None:
            raise OptionError(_unknown(name, (each.name for each in OPTIONS if each.use & use)))
        if not option.use & use:
            raise OptionError(f'option "{option.name}" has no meaning for {_described(use)}')
        texts[option.name] = text
    return {option.name: _value(option, texts.get(option.name)) for option in OPTIONS if option.use & use}


def _value(option: Option, given: str | None) -> Any:
    text = option.default if given is None else given
    if text is None:
        return None
    try:
        return option.parse(text.strip())
    except ValueError as error:
        raise OptionError(f'option "{option.name}": {error}') from error


def _unknown(name: str, names: Iterable[str]) -> str:
    known = {candidate.lower(): candidate for candidate in names}
    if found := nearest(name.lower(), known):
        return f'unknown option "{name}"; did you mean "{known[found]}"?'
    return f'unknown option "{name}"; there are: {", ".join(sorted(known.values()))}'


def access_of(options: Mapping[str, str]) -> Access:
    """How to reach the nsqds or nsqlookupds that options name. OptionError if one is wrong."""
    return Access.of(parse_options(options, Use.SINK))


def _described(use: Use) -> str:
    return {Use.BATCH: "a batch read", Use.STREAM: "a stream", Use.SINK: "writing"}.get(use, str(use))


# Settings.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What is to be read, and how."""

    access: Access
    topics: tuple[str, ...]
    topic_pattern: str | None
    mode: Mode
    channel: str | None
    spool: str | None
    start: Start
    end: Start | None
    """None: a stream, which has no end."""
    columns: tuple[str, ...]
    max_rows_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_rows_per_trigger: int | None
    max_trigger_delay_s: float
    rows_per_partition: int
    min_partitions: int
    fail_on_data_loss: bool
    fetch_bytes: int
    discovery_interval_s: float

    @property
    def wanted(self) -> str:
        """The topics to be read, for messages."""
        by_name = f"topic {', '.join(self.topics)}"
        return by_name if self.topic_pattern is None else f"a topic of the pattern {self.topic_pattern}"

    def report_loss(self, text: str) -> None:
        """Messages that were to be read are gone: DataLossError, or a line in the log if the options allow it."""
        if self.fail_on_data_loss:
            raise DataLossError(f'{text}. Option "failOnDataLoss" = "false" goes on with what is there')
        _log.warning("%s", text)

    @classmethod
    def of(cls, options: Mapping[str, str], use: Use) -> Self:
        """From options as given to Spark. OptionError if one is wrong."""
        values = parse_options(options, use)
        if bool(values["topic"]) == bool(values["topicPattern"]):
            fault = "both are given" if values["topic"] else "neither is given"
            raise OptionError(f'either "topic" or "topicPattern" says what to read: {fault}')
        fewest, most = values.get("minRowsPerTrigger"), values.get("maxRowsPerTrigger")
        if fewest is not None and most is not None and fewest > most:
            raise OptionError(f'option "minRowsPerTrigger": {fewest} is more than "maxRowsPerTrigger" allows, {most}')
        return cls(
            access=Access.of(values),
            topics=values["topic"] or (),
            topic_pattern=values["topicPattern"],
            mode=values["mode"],
            channel=values["channel"],
            spool=values.get("spool"),
            start=values["startingOffsets"],
            end=values.get("endingOffsets"),
            columns=_columns_of(values),
            max_rows_per_trigger=values.get("maxRowsPerTrigger"),
            max_bytes_per_trigger=values.get("maxBytesPerTrigger"),
            min_rows_per_trigger=values.get("minRowsPerTrigger"),
            max_trigger_delay_s=values.get("maxTriggerDelay", 0.0),
            rows_per_partition=values["rowsPerPartition"],
            min_partitions=values["minPartitions"],
            fail_on_data_loss=values["failOnDataLoss"],
            fetch_bytes=values["fetchBytes"],
            discovery_interval_s=values.get("discoveryInterval", 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Where rows go, and how."""

    access: Access
    topic: str | None
    max_body_bytes: int
    write_id: str | None
    """The name of a batch write, by which nsqd recognizes a repetition."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From options as given to Spark. OptionError if one is wrong."""
        values = parse_options(options, Use.SINK)
        topics = values["topic"] or (None,)
        if len(topics) > 1:
            raise OptionError(
                'option "topic": a row goes to one topic; the column "topic" can name another in each row'
            )
        return cls(
            access=Access.of(values),
            topic=topics[0],
            max_body_bytes=values["maxBodyBytes"],
            write_id=values["writeId"],
        )
