"""Files where Spark has them: on this machine, in HDFS, in an object store. Through Hadoop's API, on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


class FileSystem:
    """Any file system that Spark knows; a path says which."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        java_context: Any = spark.sparkContext._jsc
        self._configuration: Any = java_context.hadoopConfiguration()

    def read_text(self, path: str) -> str | None:
        """What is in a small file; None if it is not there."""
        system, file = self._opened(path)
        if not system.exists(file):
            return None
        stream = system.open(file)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Make the file hold `text`, as a whole or not at all."""
        system, file = self._opened(path)
        being_written = self._path(f"{path}.new")
        stream = system.create(being_written, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        system.delete(file, False)
        system.rename(being_written, file)

    def remove(self, path: str) -> None:
        """Remove a file or a folder; if it is not there, all is well."""
        system, file = self._opened(path)
        system.delete(file, True)

    def move(self, old: str, new: str) -> None:
        """Move a file; the folder it goes to is made."""
        system, file = self._opened(old)
        target = self._path(new)
        system.mkdirs(target.getParent())
        if not system.rename(file, target):
            raise OSError(f"{old} cannot be moved to {new}")

    def matching(self, pattern: str) -> list[str]:
        """The files whose paths match, where `*` is any name."""
        system, glob = self._opened(pattern)
        return [str(status.getPath().toString()) for status in system.globStatus(glob) or ()]

    def files_below(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder and the folders in it, relative to it."""
        system, root = self._opened(folder)
        start = len(str(system.makeQualified(root).toUri().getPath())) + 1
        found = system.listFiles(root, True)
        while found.hasNext():
            yield str(found.next().getPath().toUri().getPath())[start:]

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _opened(self, path: str) -> tuple[Any, Any]:
        file = self._path(path)
        return file.getFileSystem(self._configuration), file
