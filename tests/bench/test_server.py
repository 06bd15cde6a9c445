"""Which flags a measured server is given."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.server import Binary

GO_HELP = """#!/bin/sh
cat >&2 <<'END'
Usage of nsqd:
  -mem-queue-size int
    \tnumber of messages to keep in memory (per topic/channel) (default 10000)
END
"""


def test_an_emberq_takes_our_flags_on_either_side_and_another_nsqd_does_not(tmp_path: Path) -> None:
    other = tmp_path / "nsqd"
    other.write_text(GO_HELP)
    other.chmod(0o755)
    flags = ("--mem-queue-size=5", "--mem-queue-bytes=0")
    assert Binary(path=Path(sys.executable).parent / "nsqd").knows(flags)
    assert Binary(path=other).knows(flags[:1])
    assert not Binary(path=other).knows(flags)
