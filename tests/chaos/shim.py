"""Faults of the operating system for one process: errors of its files, and a wall clock that is wrong.

shim.c is compiled with the machine's C compiler and put between nsqd and libc by LD_PRELOAD. Which faults there are is
written into a file that both sides share, so they come and go while nsqd runs.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
LAYOUT = struct.Struct("<qiiiiqq256s")
"""As `struct control` in shim.c."""
EVERYWHERE = (0, 1 << 62)


@dataclass
class OsFaults:
    """What goes wrong; error numbers as in `errno`, 0: nothing."""

    path: str
    """A part of the names of the files concerned."""
    clock_offset_ns: int = 0
    read_errno: int = 0
    write_errno: int = 0
    sync_errno: int = 0
    change_errno: int = 0
    """Of creating, renaming and removing files."""
    bad_positions: tuple[int, int] = EVERYWHERE
    """Reads that touch these positions fail, with `read_errno`."""

    def encode(self) -> bytes:
        errors = (self.read_errno, self.write_errno, self.sync_errno, self.change_errno)
        return LAYOUT.pack(self.clock_offset_ns, *errors, *self.bad_positions, self.path.encode())


def compile_shim(folder: Path) -> Path | None:
    """The shared library, made in `folder`; None where there is no C compiler, or it cannot make one."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    made = subprocess.run(command, capture_output=True, check=False)
    return library if made.returncode == 0 else None


class Shim:
    """The faults of one process, which is started with `environment`."""

    def __init__(self, library: Path, control: Path) -> None:
        self._library = library
        self._control = control
        self.set(OsFaults(path=""))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "EMBERQ_SHIM": str(self._control)}

    def set(self, faults: OsFaults) -> None:
        """From now on these faults, and no others."""
        # In place: the process has this very file mapped.
        fd = os.open(self._control, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, faults.encode(), 0)
        finally:
            os.close(fd)

    def heal(self) -> None:
        self.set(OsFaults(path=""))
