"""What every program says of itself: its version, and how it is used."""

from __future__ import annotations

import platform
import shutil
import sys

from emberq import NSQ_VERSION
from emberq.base.reference import render_help
from emberq.base.settings import SettingTable


def version_line(program: str) -> str:
    """What `--version` prints and a daemon logs first."""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()})"


def print_usage(table: SettingTable) -> None:
    """The help, on standard error, as wide as the terminal within reason."""
    columns = shutil.get_terminal_size(fallback=(100, 24)).columns
    sys.stderr.write(render_help(table, width=min(max(columns, 72), 110)))
