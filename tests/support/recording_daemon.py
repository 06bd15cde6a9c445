"""A daemon that answers as a test says and notes what it was asked, in one list with others: for the order of calls."""

from __future__ import annotations

from typing import Any

from tests.support.threaded_http import NOT_FOUND, Received, Reply, ThreadedHttp


class RecordingDaemon(ThreadedHttp):
    """Answers each path with its document, anything else with 404."""

    def __init__(self, name: str, answers: dict[str, Any], calls: list[str]) -> None:
        super().__init__(self._answer)
        self._name = name
        self.answers = answers
        self._calls = calls

    def _answer(self, request: Received) -> Reply:
        self._calls.append(f"{request.method} {self._name}{request.target}")
        document = self.answers.get(request.target.partition("?")[0])
        return NOT_FOUND if document is None else Reply(document)
