"""An HTTP server that answers as a test tells it, for what a healthy nsqd never does."""

from __future__ import annotations

from collections import deque

from tests.support.threaded_http import Received, Reply, ThreadedHttp


class ScriptedHttp(ThreadedHttp):
    """Sends the replies one after the other, the last one again and again."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(self._next, keeps_alive=True)
        self._replies = deque(replies)

    def _next(self, _request: Received) -> Reply:
        return self._replies.popleft() if len(self._replies) > 1 else self._replies[0]
