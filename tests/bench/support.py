"""What the tests of the benchmark share."""

from __future__ import annotations

import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("make") is None, reason="the load generator is built by make and cc"
)
