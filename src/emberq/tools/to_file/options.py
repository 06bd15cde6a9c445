"""Every flag of nsq_to_file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from emberq.base.address import AddressError, parse_address
from emberq.base.kinds import LOG_LEVEL, SettingError
from emberq.base.log import LogLevel
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.client.address import lookup_url
from emberq.tools.client_options import ClientOption, ClientOptions
from emberq.tools.source import SOURCE, SourceOptions, check_addresses
from emberq.tools.to_file.file_name import PLAIN, REVISION, complete_template
from emberq.tools.to_file.topic_pattern import PatternError, TopicPattern
from emberq.wire.name import is_valid_name

TOOL = "nsq_to_file"

_FILES = Group("Files")
_ROTATION = Group("Rotation")
_LOG = Group("Log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SourceOptions):
    """What nsq_to_file is to do. Names are the flags' names; a duration's name ends in its unit, `_ns`."""

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

    # What follows from the flags

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
        """As `OutputFile` takes it."""
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
        """The regular expression for topics; PatternError if it is none."""
        return TopicPattern(self.topic_pattern)

    # Checks

    def validated(self) -> Options:
        """These options; OptionsError for the first that cannot work."""
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
        except PatternError as error:
            raise OptionsError(f"--topic-pattern is invalid: {self.topic_pattern}") from error

    def _check_files(self) -> None:
        if not 1 <= self.gzip_level <= 9:
            raise OptionsError(f"invalid --gzip-level value ({self.gzip_level}), should be 1-9")
        if self.has_revisions and REVISION not in self.filename_format:
            raise OptionsError("missing <REV> in --filename-format when gzip, rotation, or work dir enabled")


SETTINGS = SettingTable(TOOL, options_class=Options, command=(VERSION,))
