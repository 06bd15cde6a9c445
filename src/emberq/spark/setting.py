"""What the options of one read or write come to, checked together: the values that go to driver and executors.

Nothing here is open or secret to Spark: settings are pickled into every task, so they hold paths and texts, no sockets.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from emberq.spark.error import OptionError
from emberq.spark.journal_start import Start
from emberq.spark.option import Mode, Use, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach nsqds and nsqlookupds."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_verify: bool
    auth_secret: str | None = field(repr=False)
    request_timeout_s: float
    retry_timeout_s: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From the values of options. OptionError if they do not say where to go."""
        nsqds, lookupds = values["nsqd"] or (), values["lookupd"] or ()
        if bool(nsqds) == bool(lookupds):
            fault = "both are given" if nsqds else "neither is given"
            raise OptionError(
                f'either "nsqd" (HTTP addresses such as 127.0.0.1:4151) or "lookupd" (such as 127.0.0.1:4161): {fault}'
            )
        return cls(
            nsqds=nsqds,
            lookupds=lookupds,
            tls=values["tls"],
            tls_ca_file=values["tlsCaFile"],
            tls_cert_file=values["tlsCertFile"],
            tls_key_file=values["tlsKeyFile"],
            tls_verify=values["tlsVerify"],
            auth_secret=values["authSecret"],
            request_timeout_s=values["requestTimeout"],
            retry_timeout_s=values["retryTimeout"],
        )

    def tls_context(self) -> ssl.SSLContext:
        """A context that judges servers as the options say. OptionError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
            if self.tls_cert_file is not None:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        except OSError as error:  # an SSLError is one
            raise OptionError(f'options "tlsCaFile", "tlsCertFile", "tlsKeyFile": {error}') from error
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


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
    max_rows_per_trigger: int | None
    rows_per_partition: int
    min_partitions: int
    fail_on_data_loss: bool
    fetch_bytes: int
    discovery_interval_s: float

    @classmethod
    def of(cls, options: Mapping[str, str], use: Use) -> Self:
        """From what the user wrote. OptionError for what is wrong with it."""
        values = parse_options(options, use)
        if bool(values["topic"]) == bool(values["topicPattern"]):
            fault = "both are given" if values["topic"] else "neither is given"
            raise OptionError(f'either "topic" or "topicPattern" says what to read: {fault}')
        return cls(
            access=Access.of(values),
            topics=values["topic"] or (),
            topic_pattern=values["topicPattern"],
            mode=values["mode"],
            channel=values["channel"],
            spool=values.get("spool"),
            start=values["startingOffsets"],
            end=values.get("endingOffsets"),
            max_rows_per_trigger=values.get("maxRowsPerTrigger"),
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
    """What a batch write is called, so that it is known again when it is repeated."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From what the user wrote. OptionError for what is wrong with it."""
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
