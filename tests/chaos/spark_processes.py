"""A Spark driver with all its processes, as the kernel knows them.

driver                      python, which leads a session of its own
└── java                    Spark; in local-cluster mode its master and workers too
    ├── python              the reader of a query; in channel mode it receives
    └── java                CoarseGrainedExecutorBackend: an executor
        └── python          pyspark.daemon, which forks
            └── python      the worker of a task
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import pyspark

from emberq.spark.pipeline.run import JAVA_IS_GONE
from tests.support.caught_signal import catches
from tests.support.postgres import PASSWORD, PASSWORD_VARIABLE, PostgresServer
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
BATCH_TIMEOUT_S = 240
"""A driver takes seconds to its first batch, but minutes on a machine that is busy with other things."""
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors, each a process with one core."""


class Process(NamedTuple):
    """A process as it is in /proc at a moment."""

    pid: int
    parent: int
    session: int
    command: str

    @property
    def is_executor(self) -> bool:
        return "CoarseGrainedExecutorBackend" in self.command

    @property
    def is_worker(self) -> bool:
        return "pyspark.daemon" in self.command or "emberq.spark.worker_daemon" in self.command

    @property
    def is_java(self) -> bool:
        return "org.apache.spark.deploy.SparkSubmit" in self.command

    def kill(self) -> None:
        """As SIGKILL does; it may be gone already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def processes() -> list[Process]:
    """All that run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state, parent, _group, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                found.append(Process(int(folder.name), int(parent), int(session), command))
    return found


def descendants(pid: int) -> list[Process]:
    """The children of a process, theirs, and so on; parents first."""
    found: list[Process] = []
    everybody = processes()
    parents = {pid}
    while children := [each for each in everybody if each.parent in parents]:
        found += children
        parents = {each.pid for each in children}
    return found


def spark_home(folder: Path) -> Path:
    """The installed Spark, by links, in a folder of its own: that of a cluster's executors is made there."""
    home = folder / "spark-home"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return home


class DriverProcess:
    """A Python process that works in `folder`, with all the processes it makes; a context manager that leaves none
    behind."""

    module: str
    """Its program."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        with (folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments],
                cwd=ROOT,
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.kill()

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}

    def kill(self) -> None:
        """End it with all its processes."""
        while left := [each for each in processes() if each.session == self._process.pid]:
            for process in left:
                process.kill()
            time.sleep(0.05)
        self._process.wait()

    def kill_python(self) -> None:
        """End the driver's Python alone. The other processes have to notice by themselves."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Tell it to end once it listens, and wait until it has: a signal before that ends any Python at once."""
        wait_until(lambda: not self.is_running or catches(self._process.pid, signal.SIGTERM), timeout_s=BATCH_TIMEOUT_S)
        self._process.terminate()
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        assert self._process.wait(BATCH_TIMEOUT_S) == 0, self.log()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """The end of what it, and those before it, have said."""
        return (self.folder / "driver.log").read_text(errors="replace")[-8000:]

    def _kill_javas(self) -> None:
        for process in descendants(self._process.pid):
            if process.is_java:
                process.kill()


class ArchiveCommand(DriverProcess):
    """`emberq archive`, as an operator runs it."""

    module = "emberq.cli.main"

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__(folder, "archive", *arguments)

    def kill_java(self) -> None:
        """End the driver's Java alone. The command has to notice by itself, and fails."""
        self._kill_javas()
        assert self._process.wait(BATCH_TIMEOUT_S) != 0, self.log()
        assert JAVA_IS_GONE in self.log()


class Archiver(DriverProcess):
    """A process that reads messages into its folder. It is told what to do as JSON, with what is in `task` besides."""

    def __init__(self, folder: Path, *, options: Mapping[str, str], is_last: bool = False, **task: str) -> None:
        super().__init__(
            folder, json.dumps({"folder": str(folder), "options": dict(options), "is_last": is_last, **task})
        )

    @property
    def batch_count(self) -> int:
        """How much is done, over all processes of this folder."""
        raise NotImplementedError

    def bodies(self) -> Iterator[bytes]:
        """Of all messages that were archived."""
        raise NotImplementedError

    def wait_for_batches(self, count: int) -> bool:
        """Wait until so much is done; False if it ends before. Looked at rarely: others should have the processor."""
        deadline_s = time.monotonic() + BATCH_TIMEOUT_S
        while self.batch_count < count:
            if not self.is_running:
                return False
            assert time.monotonic() < deadline_s, f"no micro-batch was done in time\n{self.log()}"
            time.sleep(0.1)
        return True


class ReceivingProcess(Archiver):
    """Channel mode without Spark."""

    module = "tests.chaos.spark_receiving"

    @property
    def batch_count(self) -> int:
        return len(list(self.folder.glob("rows/*.txt")))

    def bodies(self) -> Iterator[bytes]:
        for path in self.folder.glob("rows/*.txt"):
            yield from path.read_bytes().split(b"\n")


class ArchivingDriver(Archiver):
    """A Spark that archives into Parquet files."""

    module = "tests.spark.archiving_driver"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"SPARK_HOME": str(spark_home(self.folder))}

    @property
    def batch_count(self) -> int:
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))

    def bodies(self) -> Iterator[bytes]:
        return parquet_bodies(self.folder)

    def kill_java(self) -> None:
        """End the driver's Java alone. The other processes have to notice by themselves."""
        self._kill_javas()
        self.kill_python()

    def executors(self) -> list[Process]:
        return [each for each in descendants(self._process.pid) if each.is_executor]

    def workers(self) -> list[Process]:
        """Python processes that tasks run in."""
        return [each for each in descendants(self._process.pid) if each.is_worker]

    def kill_executor(self, choose: Callable[[list[Process]], Process]) -> bool:
        """End one executor with its workers, if there is one."""
        executors = self.executors()
        if not executors:
            return False
        executor = choose(executors)
        below = descendants(executor.pid)
        executor.kill()
        for process in below:
            process.kill()
        return True

    def kill_worker(self, choose: Callable[[list[Process]], Process]) -> bool:
        """End one worker, if there is one."""
        workers = self.workers()
        if workers:
            choose(workers).kill()
        return bool(workers)


class DatabaseDriver(ArchivingDriver):
    """A pipeline that writes to a table of PostgreSQL."""

    module = "tests.spark.database_driver"

    def __init__(
        self, folder: Path, *, postgres: PostgresServer, options: Mapping[str, str], is_last: bool, master: str
    ) -> None:
        self._postgres = postgres
        super().__init__(folder, options=options, is_last=is_last, master=master, url=postgres.url)

    def environment(self) -> dict[str, str]:
        return super().environment() | {PASSWORD_VARIABLE: PASSWORD}

    @property
    def batch_count(self) -> int:
        return len(list((self.folder / "checkpoint" / "rows" / "commits").glob("[0-9]*")))

    def bodies(self) -> Iterator[bytes]:
        return (body.encode() for (body,) in self._postgres.rows("SELECT body FROM bodies"))


def parquet_bodies(folder: Path) -> Iterator[bytes]:
    """The bodies of all rows that were archived."""
    import pyarrow.dataset as ds  # only here: it takes a while

    for batch in ds.dataset(folder / "rows", format="parquet").to_batches(columns=["body"]):
        yield from batch.column(0).to_pylist()
