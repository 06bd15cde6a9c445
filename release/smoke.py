"""Tries an installed emberq with nothing but the installation: `python release/smoke.py --compiled`.

It is run by the Python of the environment that emberq was installed into, and imports nothing but the standard library
and what the wheel brought. So it tells what a user would meet: a module that was left out of the wheel, a dependency
that only tests install, a wheel of Python alone where a compiled one was meant to be.

    1. emberq is that of the environment, of the kind that was asked for (--compiled or --pure)
    2. every command that the wheel installs answers to --help, and every subcommand of `emberq`
    3. a message goes round through `emberq up`, and `emberq up` ends well

On Windows, which has the client and the tools alone, the daemons have to say so, and the third step is left out.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

PATIENCE_S = 60
"""For one command on a busy machine; each takes less than a second on an idle one."""

IS_WINDOWS = sys.platform == "win32"
NOT_HERE = "needs Linux or macOS"
"""What the daemons say on Windows."""
PORT_FLAGS = ("--nsqd-tcp-port", "--nsqd-http-port", "--lookupd-tcp-port", "--lookupd-http-port", "--admin-http-port")
NSQD_ROW = re.compile(r"^\s*nsqd\s+tcp (127\.0\.0\.1:\d+)")
ADMIN_ROW = re.compile(r"^\s*nsqadmin\s+(http://127\.0\.0\.1:\d+)")


class SmokeError(Exception):
    """The installation is not what it has to be."""


def main(words: Sequence[str] | None = None) -> int:
    """Run all steps; the exit status."""
    parser = argparse.ArgumentParser(description="Try the emberq that is installed in this environment.")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--compiled", dest="compiled", action="store_true", help="its hot modules have to be compiled")
    kind.add_argument("--pure", dest="compiled", action="store_false", help="it has to be Python alone")
    compiled: bool = parser.parse_args(words).compiled
    try:
        check_kind(compiled=compiled)
        count = check_help()
        if not IS_WINDOWS:
            check_round_trip()
    except SmokeError as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1
    went = "" if IS_WINDOWS else ", a message went round"
    print(f"smoke: {'compiled' if compiled else 'pure'}, {count} commands answer{went}")
    return 0


def check_kind(*, compiled: bool) -> None:
    """See that commands run the emberq of this environment, compiled or not as it has to be."""
    import emberq

    environment = Path(sysconfig.get_path("purelib"))
    if not Path(emberq.__file__).is_relative_to(environment):
        raise SmokeError(f"this is not the installed emberq, but {emberq.__file__}")
    told = run("emberq", "--version")
    if ("not compiled" in told) is compiled:
        raise SmokeError(f"it should be {'compiled' if compiled else 'pure'}, and says: {told.strip()}")


def check_help() -> int:
    """See that every command tells how it is used; their number."""
    from emberq.cli.main import SUBCOMMANDS

    scripts = sorted(distribution("emberq").entry_points.select(group="console_scripts").names)
    commands = [(name,) for name in scripts] + [("emberq", subcommand.name) for subcommand in SUBCOMMANDS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for words, told in zip(commands, pool.map(lambda words: run(*words, "--help"), commands), strict=True):
            if "usage" not in told.lower() and NOT_HERE not in told:
                raise SmokeError(f"{' '.join(words)} --help does not tell how it is used: {told!r}")
    return len(commands)


def check_round_trip() -> None:
    """See that what is published arrives, through daemons that `emberq up` starts, and that nsqadmin is up."""
    with tempfile.TemporaryDirectory(prefix="emberq-smoke-") as folder, running_up(folder) as (nsqd, admin):
        run("emberq", "pub", "smoke", "there and back", f"--nsqd-tcp-address={nsqd}")
        got = run("nsq_tail", "--topic=smoke", "--channel=smoke", "--n=1", f"--nsqd-tcp-address={nsqd}")
        if "there and back" not in got:
            raise SmokeError(f"nsq_tail printed {got!r}")
        with urllib.request.urlopen(f"{admin}/ping", timeout=PATIENCE_S) as answer:
            if answer.read() != b"OK":
                raise SmokeError("nsqadmin is not well")


@contextmanager
def running_up(folder: str) -> Iterator[tuple[str, str]]:
    """The addresses of nsqd and nsqadmin while `emberq up` runs; it has to end well when it is told to."""
    words = command(("emberq", "up", f"--data-path={folder}/data", *(f"{flag}=0" for flag in PORT_FLAGS)))
    with subprocess.Popen(
        words, env=bare_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        try:
            yield read_banner(up)
            up.send_signal(signal.SIGTERM)
            up.communicate(timeout=PATIENCE_S)
            if up.returncode:
                raise SmokeError(f"emberq up ended with status {up.returncode}")
        finally:
            up.kill()


def read_banner(up: subprocess.Popen[str]) -> tuple[str, str]:
    """The addresses of nsqd and nsqadmin, as `emberq up` prints them."""
    assert up.stdout is not None
    lines: list[str] = []
    found: dict[re.Pattern[str], str] = {}
    for line in up.stdout:
        lines.append(line)
        found |= {row: match[1] for row in (NSQD_ROW, ADMIN_ROW) if (match := row.match(line))}
        if len(found) == 2:
            return found[NSQD_ROW], found[ADMIN_ROW]
    raise SmokeError(f"emberq up ended early: {''.join(lines)}")


def run(*words: str) -> str:
    """Run a command of the environment to its end; what it prints."""
    try:
        done = subprocess.run(
            command(words), env=bare_environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SmokeError(f"{' '.join(words)}: {error}") from error
    if done.returncode and not (IS_WINDOWS and NOT_HERE in done.stderr):
        raise SmokeError(f"{' '.join(words)} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout + done.stderr


def command(words: Sequence[str]) -> list[str]:
    return [str(Path(sysconfig.get_path("scripts"), words[0])), *words[1:]]


def bare_environment() -> dict[str, str]:
    """Without what would bring in the source tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


if __name__ == "__main__":
    sys.exit(main())
