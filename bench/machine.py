"""What the machine is, for those who read the numbers later."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_MODEL_NAME = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_CPU_INFO = Path("/proc/cpuinfo")
_CPU_TIMES = Path("/proc/stat")
_HALT_POLLING = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")


def processor() -> str:
    """The model of its CPU; where /proc does not tell (ARM, for one), at least its architecture."""
    found = _MODEL_NAME.search(_CPU_INFO.read_text(errors="replace"))
    return found[1].strip() if found else platform.machine()


def stolen_s() -> float:
    """CPU that the host has given to others while this machine wanted it, on all cores, since the machine began."""
    total = _CPU_TIMES.read_text().split("\n", 1)[0].split()
    return int(total[8]) / os.sysconf("SC_CLK_TCK")


def halts_at_once() -> bool:
    """Whether this is a virtual machine that halts a core as soon as nothing is to be done on it.

    Linux has it look for work a little longer by default, since to wake a halted core is dear. Where it does not,
    programs that wait for each answer measure the host.
    """
    return _HALT_POLLING.exists() and int(_HALT_POLLING.read_text()) == 0


def description() -> str:
    cores = os.cpu_count() or 1
    return f"{processor()}, {cores} {'core' if cores == 1 else 'cores'}, {platform.system()} {platform.release()}"
