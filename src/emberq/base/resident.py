"""How much memory the process has in RAM, as Linux tells it in /proc/self/status:

VmHWM:     20480 kB     the most that ever was
VmRSS:     16384 kB     now
RssAnon:    8192 kB     of that, without files and libraries mapped into memory
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Memory that is in RAM."""

    all_bytes: int
    own_bytes: int
    """Without files and libraries mapped into memory, which may be shared."""
    peak_bytes: int
    """The most that ever was."""


def read_resident() -> Resident:
    """The process's memory now. Where there is no /proc, the peak has to stand for all three."""
    try:
        status = _STATUS.read_bytes()
    except OSError:
        peak_bytes = _peak_by_rusage()
        return Resident(all_bytes=peak_bytes, own_bytes=peak_bytes, peak_bytes=peak_bytes)
    return Resident(
        all_bytes=_status_bytes(status, b"VmRSS:"),
        own_bytes=_status_bytes(status, b"RssAnon:"),
        peak_bytes=_status_bytes(status, b"VmHWM:"),
    )


def _status_bytes(status: bytes, name: bytes) -> int:
    r"""The value of a line such as `VmRSS:\t   12345 kB`; 0 if this kernel has no such line."""
    fields = status.partition(name)[2].split(maxsplit=1)
    return int(fields[0]) * _KIB if fields else 0


def _peak_by_rusage() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB
