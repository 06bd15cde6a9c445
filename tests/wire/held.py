"""What an object holds in memory, whatever its attributes are called."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType


def reachable(root: object) -> Iterator[object]:
    """Everything that `root` refers to, directly or not, but no code."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type | ModuleType | FunctionType):
            continue
        seen.add(id(found))
        waiting += gc.get_referents(found)
        yield found


def held_bytes(root: object) -> int:
    """How many bytes of data it holds."""
    return sum(len(found) for found in reachable(root) if isinstance(found, bytes | bytearray))


def memory_bytes(root: object) -> int:
    """How much memory that takes, with everything around it."""
    return sum(map(sys.getsizeof, reachable(root)))
