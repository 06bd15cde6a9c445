"""The JSON that requests bring, and what is answered when the cluster has no answer.

The texts for what is no JSON are ours, except for the empty body, which the reference calls `EOF`; scripts look at the
status.

A failure of the cluster (`as_http_error`) becomes:

    404 NODE_NOT_FOUND, CHANNEL_NOT_FOUND, TOPIC_NOT_FOUND
    501 NOT_SUPPORTED: …      the nsqds that are concerned are not emberq's, and cannot do it
    502 UPSTREAM_ERROR: …     everything else, as in the reference
"""

from __future__ import annotations

import json
from typing import Any

from emberq.cluster.action import DrainUnknownError, NothingToPeekError, PeekUnknownError
from emberq.cluster.upstream import ChannelNotFoundError, ClusterError, NodeNotFoundError
from emberq.http.message import HttpError, Request
from emberq.wire.parameter import is_valid_name

MAX_BODY_BYTES = 64 * 1024
"""Far more than a few names take."""

_KINDS = {str: "a string", int: "a whole number"}


class Body:
    """The JSON object that a request brings; HttpError for whatever is wrong with it."""

    def __init__(self, request: Request) -> None:
        if not request.body:
            raise HttpError(400, "EOF")
        try:
            value = json.loads(request.body)
        except (ValueError, RecursionError) as wrong:
            raise HttpError(400, f"invalid JSON: {wrong}") from wrong
        if not isinstance(value, dict):
            raise HttpError(400, "invalid JSON: not an object")
        self.members: dict[str, Any] = value

    def text(self, key: str) -> str:
        """A string; empty if it is not there."""
        value = self._get(key, str)
        return "" if value is None else str(value)

    def integer(self, key: str) -> int | None:
        """A whole number; None if it is not there."""
        value = self._get(key, int)
        return None if value is None else int(value)

    def objects(self, key: str) -> list[dict[str, Any]]:
        """A list of JSON objects; empty if it is not there."""
        value = self.members.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise HttpError(400, f"{key} must be a list of objects")
        return value

    def _get(self, key: str, kind: type) -> Any:
        value = self.members.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise HttpError(400, f"{key} must be {_KINDS[kind]}")
        return value


def check_topic(name: str) -> str:
    """The name; HttpError unless a topic may be called so: nsqlookupd would take `*` for every topic."""
    if not is_valid_name(name):
        raise HttpError(400, "INVALID_TOPIC")
    return name


def check_channel(name: str) -> str:
    """The name; HttpError unless a channel may be called so."""
    if not is_valid_name(name):
        raise HttpError(400, "INVALID_CHANNEL")
    return name


class TopicNotFoundError(ClusterError):
    """No nsqd has the topic."""


class NotSupportedError(ClusterError):
    """None of the nsqds concerned can do it."""


def as_http_error(failure: ClusterError) -> HttpError:
    """What a client is answered."""
    match failure:
        case NodeNotFoundError():
            return HttpError(404, "NODE_NOT_FOUND")
        case ChannelNotFoundError() | NothingToPeekError():
            return HttpError(404, "CHANNEL_NOT_FOUND")
        case TopicNotFoundError():
            return HttpError(404, "TOPIC_NOT_FOUND")
        case NotSupportedError() | PeekUnknownError() | DrainUnknownError():
            return HttpError(501, f"NOT_SUPPORTED: {failure}")
        case _:
            return HttpError(502, f"UPSTREAM_ERROR: {failure}")
