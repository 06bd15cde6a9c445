"""What can go wrong between Spark and NSQ.

    NsqSparkError
    ├── OptionError            an option is unknown, missing or makes no sense; raised before any data moves
    ├── SchemaError            the rows to be written are not messages; raised before any data moves
    ├── RowError               one of the rows cannot be a message: its body is null or empty, its topic is not valid
    ├── JavaNotFoundError      there is no Java that Spark can run on
    ├── DataLossError          rows that were to be read are gone: removed by retention, damaged, or another journal's
    ├── NsqdUnavailableError   an nsqd or nsqlookupd does not answer, or not now; worth another try
    ├── NsqdRefusedError       it answered with an error, and would again: `status` and `code`
    ├── ArchiveError           Java cannot archive Spark's classes (`java`)
    ├── StatementError         Spark cannot run a statement (`sql`)
    ├── PipelineError          a pipeline that cannot be run (`pipeline.model`)
    └── PipelineFailedError    a query of a pipeline that could not go on (`pipeline.run`)

Spark passes exceptions between processes as text, so the text says everything: which option, which nsqd, what to do
about it. All can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any


class NsqSparkError(Exception):
    """The root of the errors that this package raises."""


class OptionError(NsqSparkError, ValueError):
    """An option is unknown, missing or makes no sense."""


class SchemaError(NsqSparkError, ValueError):
    """A DataFrame whose columns are not those of messages."""


class RowError(NsqSparkError, ValueError):
    """A row that cannot be a message."""


class JavaNotFoundError(NsqSparkError):
    """There is no Java that Spark can run on."""


class DataLossError(NsqSparkError):
    """Rows that were to be read are not there any more. `failOnDataLoss=false` goes on without them."""


class NsqdUnavailableError(NsqSparkError, ConnectionError):
    """An nsqd or nsqlookupd does not answer, or says that it cannot just now."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.address, self.reason)


class NsqdRefusedError(NsqSparkError):
    """An nsqd or nsqlookupd refused a request. `code` is what NSQ calls the reason, such as TOPIC_NOT_FOUND."""

    def __init__(
        self, address: str, *, status: int, code: str, remedy: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(f"{address}: {status} {code}{remedy and f': {remedy}'}")
        self.address = address
        self.status = status
        self.code = code
        self.remedy = remedy
        self.facts = dict(facts or {})
        """What else the answer says, such as `first_offset`."""

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(type(self), status=self.status, code=self.code, remedy=self.remedy, facts=self.facts)
        return again, (self.address,)
