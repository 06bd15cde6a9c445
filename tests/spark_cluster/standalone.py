"""Spark's own cluster manager on this machine: a master and two workers, started from the PySpark that is installed."""

from __future__ import annotations

import json
import os
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyspark

from emberq.spark.java import find_java
from tests.spark_cluster.process_family import ProcessFamily, wait_for
from tests.support.held_port import hold_port

WORKERS = 2
START_TIMEOUT_S = 120.0
DEFAULTS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""What whoever runs a cluster writes down for all that runs there."""


class StandaloneCluster:
    """From `with` on: its address is `url`, and `environment` is what a command needs to use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = Path(pyspark.__file__).parent
        self._running = ExitStack()
        self._port, self._page_port = (self._running.enter_context(hold_port()) for _ in range(2))

    @property
    def url(self) -> str:
        """For --master."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """Where Spark's defaults are; and that everything is on this machine."""
        return {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def __enter__(self) -> Self:
        defaults = self._folder / "conf" / "spark-defaults.conf"
        defaults.parent.mkdir(parents=True)
        defaults.write_text("".join(f"{key} {value}\n" for key, value in DEFAULTS.items()))
        with ExitStack() as starting:
            family = starting.enter_context(ProcessFamily(self._folder))
            self._start(family, "master.Master", "--port", str(self._port), "--webui-port", str(self._page_port))
            wait_for(lambda: self._alive_workers() == 0, timeout_s=START_TIMEOUT_S)
            for number in range(WORKERS):
                flags = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", self._work_folder(number))
                self._start(family, "worker.Worker", *flags, self.url, name=f"worker-{number}")
            wait_for(lambda: self._alive_workers() == WORKERS, timeout_s=START_TIMEOUT_S)
            self._running.push(starting.pop_all())
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.close()

    def executors(self) -> list[int]:
        """How many executors each worker has run."""
        return [len(list(self._work_folder(number).glob("app-*/*/"))) for number in range(WORKERS)]

    def _work_folder(self, number: int) -> Path:
        return self._folder / f"work-{number}"

    def _start(self, family: ProcessFamily, role: str, *flags: str | Path, name: str = "master") -> None:
        spark_class = self._home / "bin" / "spark-class"
        command = (spark_class, f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1", *flags)
        family.start(*command, name=name, environment=self.environment)

    def _alive_workers(self) -> int | None:
        """As the master tells; None if it does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page_port}/json/", timeout=5) as answer:
                facts: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):  # there is a page before there are facts
            return None
        return int(facts["aliveworkers"])
