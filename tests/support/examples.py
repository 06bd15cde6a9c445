"""How many examples of a property are played, for properties that `make test` plays twice: compiled, and uncompiled.

The uncompiled run measures coverage, which makes every example take twice as long, and the compiled run plays them all
on the same source. So a run that measures plays a quarter of them; every other run, `make search` included, all.
"""

from __future__ import annotations

from typing import Any

from coverage import Coverage
from hypothesis import settings

SHARE_WHEN_MEASURED = 4


def examples(count: int, **more: Any) -> settings:
    """So many examples; `more` are other settings of the property."""
    is_measured = Coverage.current() is not None
    return settings(max_examples=count // SHARE_WHEN_MEASURED if is_measured else count, **more)
