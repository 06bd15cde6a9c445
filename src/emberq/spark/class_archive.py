"""Spark's classes in an archive that Java maps at each start, instead of finding and checking them one by one.

A session with its first query loads some 15,000 classes out of 300 jars, which is most of what its start costs. Java
can keep them as they are once loaded (class data sharing): then a session and its first query take a third less.

    emberq prepare-spark     runs Spark once while Java lists its classes (`recording`), and has them archived (`write`)
    every later session      starts Java with the archive, if there is one for this Java and Spark (`with_archive`)

An archive is bound to a Java and to the jars of a Spark. Another of either has another archive, or none; and Java
leaves one aside whose jars have changed or stand elsewhere on the class path, as they do when SPARK_CONF_DIR is set.
As everything behind our launcher, a session with the archive does without Java's module for vectors (see `java`).
"""

from __future__ import annotations

import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from emberq.spark.error import NsqSparkError
from emberq.spark.java import Java, launched
from emberq.spark.launcher import DIGEST_DIGITS, cache_folder

WRITE_TIMEOUT_S = 600.0

QUIET_JAVA = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java warns on standard output, of an archive that does not fit for one, where a command's results go."""


class ArchiveError(NsqSparkError):
    """This Java cannot archive classes, or the file cannot be written."""


def archive_path(java: Java) -> Path:
    """Where the archive for this Java and the installed Spark belongs."""
    release = java.program.parent.parent / "release"
    built_as = release.read_bytes() if release.is_file() else b""
    key = b"\0".join([str(java.program).encode(), built_as, pyspark.__version__.encode(), pyspark.__file__.encode()])
    return cache_folder() / f"spark-classes-{sha256(key).hexdigest()[:DIGEST_DIGITS]}.jsa"


def with_archive(java: Java) -> Java:
    """The same Java with its archive, if there is one."""
    path = archive_path(java)
    return launched(java, [f"-XX:SharedArchiveFile={path}", *QUIET_JAVA]) if path.is_file() else java


def recording(class_list: Path) -> dict[str, str]:
    """Settings of a session whose Java writes down the classes that it loads."""
    return {"spark.driver.extraJavaOptions": f"-XX:DumpLoadedClassList={class_list}"}


def class_path_of(spark: SparkSession) -> str:
    """As the Java of this session has it."""
    jvm: Any = spark._jvm
    return str(jvm.System.getProperty("java.class.path"))


def write_archive(java: Java, *, class_list: Path, class_path: str) -> Path:
    """Archive the classes of the list; where the archive is. ArchiveError if that cannot be."""
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
