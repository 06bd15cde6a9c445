"""What the broker or the disk refuses, as an answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from emberq.broker.error import BrokerError
from emberq.http.message import HttpError
from emberq.storage.errors import StorageError

_log = logging.getLogger(__name__)


@contextmanager
def failing_as_internal_error() -> Iterator[None]:
    """The client learns that it failed, the log why."""
    try:
        yield
    except (BrokerError, StorageError) as failure:
        _log.error("HTTP: failed to carry out a request - %s", failure)
        raise HttpError(500, "INTERNAL_ERROR") from failure
