"""Small scripts of ours that Spark starts in place of a program: `bin/java` and `bin/python`.

They are kept in the user's cache folder, or beside the temporary files if there is none that can be written. A script
never changes: another one, for another installation, lies in another folder, and one that runs is not pulled away.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

DIGEST_DIGITS = 12
PRIVATE_FOLDER = 0o700
EXECUTABLE = 0o755


def install_launcher(name: str, script: str) -> Path:
    """Where the script lies now, as `.../bin/NAME`. OSError if there is no folder for it."""
    folder = f"{name}-{sha256(script.encode()).hexdigest()[:DIGEST_DIGITS]}"
    failure: OSError | None = None
    for find_parent in (cache_folder, _temporary_folder):
        try:
            launcher = find_parent() / folder / "bin" / name
            if not _holds(launcher, script):
                _write_executable(launcher, script)
        except OSError as error:
            failure = error
        else:
            return launcher
    raise OSError("no folder for launchers can be written; set XDG_CACHE_HOME to one that can") from failure


def cache_folder() -> Path:
    """Where this user's programs keep what can be made again; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "emberq"


def _temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"emberq-{os.getuid()}"
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else, who could put anything there")
    return folder


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def _write_executable(path: Path, text: str) -> None:
    """As a whole, so that another process never runs half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(EXECUTABLE)
    Path(file.name).replace(path)
