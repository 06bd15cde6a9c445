"""POST /topic/create, delete, empty, pause, unpause."""

from __future__ import annotations

from collections.abc import Callable

from emberq.broker.broker import Broker
from emberq.http.message import Request, Response, empty
from emberq.nsqd.api.argument import existing_topic, required_topic, valid_topic
from emberq.nsqd.api.failure import failing_as_internal_error


class TopicApi:
    """Changes topics. A pause is on disk when it is answered, so that it outlives a crash."""

    def __init__(self, broker: Broker, persist_metadata: Callable[[], None]) -> None:
        self._broker = broker
        self._persist_metadata = persist_metadata

    def create(self, request: Request) -> Response:
        name = valid_topic(request.query())
        with failing_as_internal_error():
            self._broker.topic(name)
        return empty()

    def delete(self, request: Request) -> Response:
        """The name need not be valid: what cannot exist is not found."""
        topic = existing_topic(self._broker, required_topic(request.query()))
        with failing_as_internal_error():
            self._broker.delete_topic(topic.name)
        return empty()

    def empty(self, request: Request) -> Response:
        topic = existing_topic(self._broker, valid_topic(request.query()))
        with failing_as_internal_error():
            topic.empty()
        return empty()

    def pause(self, request: Request) -> Response:
        topic = existing_topic(self._broker, required_topic(request.query()))
        with failing_as_internal_error():
            topic.pause()
            self._persist_metadata()
        return empty()

    def unpause(self, request: Request) -> Response:
        topic = existing_topic(self._broker, required_topic(request.query()))
        with failing_as_internal_error():
            topic.unpause()
            self._persist_metadata()
        return empty()
