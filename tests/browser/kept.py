"""What takes long to start, and serves several tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

T = TypeVar("T")


class Kept:
    """What is opened when it is first asked for, and closed with everything else, the last one first."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._by_name: dict[str, Any] = {}

    def get(self, name: str, open_it: Callable[[], AbstractContextManager[T]]) -> T:
        if name not in self._by_name:
            self._by_name[name] = self._open.enter_context(open_it())
        found: T = self._by_name[name]
        return found

    def close(self) -> None:
        self._by_name.clear()
        self._open.close()
