"""How this emberq was built."""

from __future__ import annotations

from importlib.util import find_spec

COMPILED_MODULE = "emberq.wire.decoder"
"""One of those that are compiled, if any is (see hatch_build.py)."""


def is_compiled() -> bool:
    """Whether the hot modules run compiled, or as the Python they are written in."""
    spec = find_spec(COMPILED_MODULE)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
