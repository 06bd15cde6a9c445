"""What is answered when the cluster has no answer.

404 NODE_NOT_FOUND, CHANNEL_NOT_FOUND, TOPIC_NOT_FOUND
501 NOT_SUPPORTED: …      the nsqds that are concerned are not emberq's, and cannot do it
502 UPSTREAM_ERROR: …     everything else, as in the reference
"""

from __future__ import annotations

from emberq.cluster.peek import NothingToPeek, PeekUnknown
from emberq.cluster.upstream import ChannelNotFound, ClusterError, NodeNotFound
from emberq.http.message import HttpError


class TopicNotFound(ClusterError):
    """No nsqd has the topic."""


class NotSupported(ClusterError):
    """None of the nsqds concerned can do it."""


def as_http_error(failure: ClusterError) -> HttpError:
    """The same for a client."""
    match failure:
        case NodeNotFound():
            return HttpError(404, "NODE_NOT_FOUND")
        case ChannelNotFound() | NothingToPeek():
            return HttpError(404, "CHANNEL_NOT_FOUND")
        case TopicNotFound():
            return HttpError(404, "TOPIC_NOT_FOUND")
        case NotSupported() | PeekUnknown():
            return HttpError(501, f"NOT_SUPPORTED: {failure}")
        case _:
            return HttpError(502, f"UPSTREAM_ERROR: {failure}")
