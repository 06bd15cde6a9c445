"""What tells mypyc more about a class than Python can say.

    @mypyc_attr(acyclic=True)        its objects are never part of a cycle, so the garbage collector need not know them
    @mypyc_attr(free_list_len=1)     the last object that was freed is kept, for the next one

Both matter for objects that are made for each message or packet. Uncompiled they mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

Kind = TypeVar("Kind")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_attributes: object) -> Callable[[Kind], Kind]:
        """Nothing, for a class that is not compiled."""
        return lambda kind: kind


__all__ = ["mypyc_attr"]
