"""How many examples of a property are played.

`make test` plays the same ones each time: what they could find they have found, and now they hold what was mended. So
it plays half of those that a search plays at random (`make search`), and a quarter in the uncompiled runs, which take
longer over each and measure coverage.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import settings

from quality import blocks

SEARCH: Final = os.environ.get("EMBERQ_EXAMPLES") == "random"
"""Whether `make search` looks for examples that fail."""
SHARE: Final = 1 if SEARCH else 2
SHARE_WHEN_MEASURED: Final = 4
USUAL_COUNT: Final = 100


def examples(count: int, **more: Any) -> settings:
    """So many examples in a search; `more` are other settings of the property."""
    return settings(max_examples=max(1, count // (SHARE_WHEN_MEASURED if blocks.is_measuring() else SHARE)), **more)
