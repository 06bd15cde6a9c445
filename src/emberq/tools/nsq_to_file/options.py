"""The flags of nsq_to_file, and the names of its files.

**File names** are made from `--filename-format` and `--datetime-format`:

    <TOPIC>.<HOST><REV>.<DATETIME>.log   ->   clicks.web1-000002.2024-05-17_09.log

    <TOPIC>     the topic
    <HOST>      the short host name, or --host-identifier, in which <SHORT_HOST> and <HOSTNAME> stand for the host's
    <PID>       the number of the process
    <DATETIME>  local time by --datetime-format
    <REV>       `-` and six digits that tell files of otherwise equal names apart: -000000, -000001, ...

A topic may be called `..`, and any publisher may create it. In file names it is `%2E%2E`, so that a format with folders
(`<TOPIC>/<DATETIME>.log`) cannot lead out of the output folder; `.` is `%2E`.

A datetime format knows %a %A %b %B %d %H %I %m %M %p %S %y %Y %z %Z and %%; any other % stands for itself. The names of
days and months are English wherever the program runs.

**`--topic-pattern`** is a regular expression of RE2 in NSQ, and here too if google-re2 (the extra `auth`) is installed.
Otherwise Python's `re` reads it: it takes all that is usual for topic names, and a few things that RE2 refuses, such as
look-around. RE2 also promises time linear in the text, which matters for expressions of strangers; this one is the
operator's own.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from typing import Any

from emberq.base.address import AddressError, parse_address
from emberq.base.clock import NS_PER_SECOND
from emberq.base.flag import LOG_LEVEL, SettingError
from emberq.base.log import LogLevel
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.client.address import lookup_url
from emberq.tools.client_flags import SOURCE, ClientOption, ClientOptions, SourceOptions, check_addresses
from emberq.wire.parameter import is_valid_name

# File names.

PLAIN = 0
"""The compression level of a file that is not compressed."""
REVISION = "<REV>"
ESCAPED_DOT = "%2E"
"""No topic has a % in its name, so no other topic has this file."""
GZIP_SUFFIX = ".gz"

_DIRECTIVE = re.compile(r"%[aAbBdHImMpSyYzZ%]")


@dataclass(frozen=True, slots=True)
class FileName:
    """A file name, perhaps with a path, in which <REV> may still stand."""

    text: str

    def with_revision(self, revision: int) -> str:
        """The name of that revision. All have the same name if the format has no <REV>."""
        return self.text.replace(REVISION, f"-{revision:06}")


class FileNameFormat:
    """Makes the names of one topic's files."""

    def __init__(self, template: str, *, datetime_format: str, topic: str, host: str, pid: int) -> None:
        known = {"<TOPIC>": topic_part(topic), "<HOST>": host, "<PID>": str(pid)}
        for token, value in known.items():
            template = template.replace(token, value)
        self._template = template
        self._datetime_format = datetime_format

    def at(self, wall_ns: int) -> FileName:
        """The name of a file that is written at that time."""
        return FileName(self._template.replace("<DATETIME>", format_time(self._datetime_format, wall_ns)))


def topic_part(topic: str) -> str:
    """The text for <TOPIC>. `.` and `..` are topics, too; in a path they would be folders."""
    return topic.replace(".", ESCAPED_DOT) if topic in (".", "..") else topic


def format_time(datetime_format: str, wall_ns: int) -> str:
    """Local time as the format asks for it."""
    local = time.localtime(wall_ns // NS_PER_SECOND)
    # The process never leaves the "C" locale for times, so strftime speaks English.
    return _DIRECTIVE.sub(lambda found: time.strftime(found.group(), local), datetime_format)


def complete_template(template: str, *, has_revisions: bool, is_gzip: bool) -> str:
    """The template with the suffix of gzip files, and without <REV> if there is only one file of a name."""
    if not has_revisions:
        template = template.replace(REVISION, "")
    if is_gzip and not template.endswith(GZIP_SUFFIX):
        template += GZIP_SUFFIX
    return template


def host_part(identifier: str) -> str:
    """The text for <HOST>."""
    hostname = socket.gethostname()
    short = hostname.partition(".")[0]
    if not identifier:
        return short
    return identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)


# --topic-pattern

try:
    import re2
except ImportError:
    re2 = None


class TopicPatternError(ValueError):
    """Not a regular expression."""


class TopicPattern:
    """A compiled expression. It may match anywhere in a name, unless it has anchors."""

    def __init__(self, text: str) -> None:
        self._compiled = _compiled_by_re(text) if re2 is None else _compiled_by_re2(text)

    def is_found_in(self, topic: str) -> bool:
        return self._compiled.search(topic) is not None


def _compiled_by_re2(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False  # RE2 would write them to standard error
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise TopicPatternError(text) from error


def _compiled_by_re(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)  # RE2's \w and \d are ASCII, too
    except (re.error, OverflowError, RecursionError) as error:  # the last two: numbers and nesting beyond its limits
        raise TopicPatternError(text) from error


# Flags.

TOOL = "nsq_to_file"

_FILES = Group("Files")
_ROTATION = Group("Rotation")
_LOG = Group("Log")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToFileOptions(SourceOptions):
    """The flags of nsq_to_file. A duration's name ends in its unit, `_ns`."""

    consumer_opt: tuple[ClientOption, ...] = SOURCE.declare(
        ClientOptions(ignores_mistakes=True),
        (),
        "option of the client library, such as snappy; unknown ones are ignored",
    )
    topic: tuple[str, ...] = SOURCE.strings("topic to write to files", placeholder="topic")
    topic_pattern: str = SOURCE.text(
        "", "only topics in which this regular expression (RE2 with emberq[auth]) is found", placeholder="regexp"
    )
    topic_refresh_ns: int = SOURCE.duration("1m", "without --topic: how often to ask nsqlookupd for topics")
    channel: str = SOURCE.text(TOOL, "channel to consume from", placeholder="channel")
    http_client_connect_timeout_ns: int = SOURCE.duration("2s", "for connecting to nsqlookupd")
    http_client_request_timeout_ns: int = SOURCE.duration("5s", "for a whole query to nsqlookupd")

    output_dir: str = _FILES.text("/tmp", "folder of the files", placeholder="folder")  # noqa: S108 - NSQ's default
    work_dir: str = _FILES.text(
        "", "folder of files that are not complete yet; the output folder unless given", placeholder="folder"
    )
    filename_format: str = _FILES.text(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "names of the files; <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV> (to tell files apart) are replaced",
        placeholder="format",
    )
    datetime_format: str = _FILES.text("%Y-%m-%d_%H", "strftime format of <DATETIME>", placeholder="format")
    host_identifier: str = _FILES.text(
        "", "stands for <HOST>; in it <SHORT_HOST> and <HOSTNAME> are replaced", placeholder="text"
    )
    gzip: bool = _FILES.boolean("compress the files", default=False)
    gzip_level: int = _FILES.integer(6, "how hard to compress, 1 (fast) to 9 (small)")
    skip_empty_files: bool = _FILES.boolean("open a file only when there is a message for it", default=False)
    sync_interval_ns: int = _FILES.duration("30s", "longest time until messages are synced to disk and finished")

    rotate_size: int = _ROTATION.integer(0, "begin the next file when one is larger than this many bytes", at_least=0)
    rotate_interval_ns: int = _ROTATION.duration("0s", "begin the next file when one has been open for this long")

    log_level: str = _LOG.text("info", "least grave log lines to show", placeholder="level")
    log_prefix: str = _LOG.text(f"[{TOOL}] ", "start of every log line")

    # What follows from the flags.

    @property
    def has_work_dir(self) -> bool:
        """Whether files are written in one folder and appear in another."""
        return bool(self.work_dir) and os.path.realpath(self.work_dir) != os.path.realpath(self.output_dir)

    @property
    def folder_of_open_files(self) -> str:
        """Where files are written."""
        return self.work_dir or self.output_dir

    @property
    def creates_only(self) -> bool:
        """Whether no file is ever continued."""
        return self.gzip or self.rotate_interval_ns > 0

    @property
    def has_revisions(self) -> bool:
        """Whether there can be several files of one name."""
        return self.creates_only or self.rotate_size > 0 or self.has_work_dir

    @property
    def compression_level(self) -> int:
        """The `gzip_level` of `OutputFile`."""
        return self.gzip_level if self.gzip else PLAIN

    @property
    def template(self) -> str:
        """The file name format as it is used."""
        return complete_template(self.filename_format, has_revisions=self.has_revisions, is_gzip=self.gzip)

    @property
    def log_threshold(self) -> LogLevel:
        """The log level; ValueError if the flag names none."""
        return LOG_LEVEL.from_text(self.log_level)

    def compiled_pattern(self) -> TopicPattern:
        """The regular expression for topics. TopicPatternError if it is none."""
        return TopicPattern(self.topic_pattern)

    # Checks

    def validated(self) -> ToFileOptions:
        """These options. OptionsError for the first that cannot work."""
        self._check_general()
        self._check_source()
        self._check_files()
        try:
            SETTINGS.check_ranges(self)
        except SettingError as error:
            raise OptionsError(str(error)) from error
        return self

    def _check_general(self) -> None:
        try:
            _ = self.log_threshold
        except ValueError as error:
            raise OptionsError("--log-level is invalid") from error
        if not self.channel:
            raise OptionsError("--channel is required")
        for flag, duration_ns in (
            ("http-client-connect-timeout", self.http_client_connect_timeout_ns),
            ("http-client-request-timeout", self.http_client_request_timeout_ns),
            ("topic-refresh", self.topic_refresh_ns),
            ("sync-interval", self.sync_interval_ns),
        ):
            if duration_ns <= 0:
                raise OptionsError(f"--{flag} should be positive")

    def _check_source(self) -> None:
        if not self.nsqd_tcp_address and not self.lookupd_http_address:
            raise OptionsError("--nsqd-tcp-address or --lookupd-http-address required.")  # the full stop is NSQ's
        check_addresses(self)
        for address in self.nsqd_tcp_address:
            try:
                parse_address(address)
            except AddressError as error:
                raise OptionsError(f"--nsqd-tcp-address is invalid: {error}") from error
        for address in self.lookupd_http_address:
            try:
                lookup_url(address, "")
            except ValueError as error:
                raise OptionsError(f"--lookupd-http-address is invalid: {error}") from error
        self._check_topics()

    def _check_topics(self) -> None:
        if not self.topic and not self.topic_pattern:
            raise OptionsError("--topic or --topic-pattern required")
        if not self.topic and not self.lookupd_http_address:
            raise OptionsError("--lookupd-http-address must be specified when no --topic specified")
        if not is_valid_name(self.channel):
            raise OptionsError("--channel is invalid")
        for topic in self.topic:
            if not is_valid_name(topic):
                raise OptionsError(f"--topic is invalid: {topic}")
        try:
            self.compiled_pattern()
        except TopicPatternError as error:
            raise OptionsError(f"--topic-pattern is invalid: {self.topic_pattern}") from error

    def _check_files(self) -> None:
        if not 1 <= self.gzip_level <= 9:
            raise OptionsError(f"invalid --gzip-level value ({self.gzip_level}), should be 1-9")
        if self.has_revisions and REVISION not in self.filename_format:
            raise OptionsError("missing <REV> in --filename-format when gzip, rotation, or work dir enabled")


SETTINGS = SettingTable(TOOL, options_class=ToFileOptions, command=(VERSION,))
