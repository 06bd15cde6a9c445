"""How many examples of a property are played, for properties that `make test` plays twice: compiled, and uncompiled.

The uncompiled run measures coverage and takes longer over every example, and the compiled run plays them all on the
same source. So a run that measures plays a quarter of them; every other run, `make search` included, all.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

from quality import blocks

SHARE_WHEN_MEASURED = 4


def examples(count: int, **more: Any) -> settings:
    """So many examples; `more` are other settings of the property."""
    share = SHARE_WHEN_MEASURED if blocks.is_measuring() else 1
    return settings(max_examples=count // share, **more)
