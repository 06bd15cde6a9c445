"""The daemon of Spark's workers, started as Spark starts it, with workers of our own."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emberq.spark.java import local_worker_python
from tests.support.waiting import wait_until

LATE = """
def main(infile, outfile):
    infile.read()                       # until Spark has closed the connection
    {failing}
    outfile.write(b"too late")
"""
COUNTING = """
import gc, struct

def main(infile, outfile):
    infile.read(1)
    outfile.write(struct.pack("!i", gc.get_freeze_count()))
"""
TIMEOUT_S = 60.0


@contextmanager
def spark_connected(tmp_path: Path, worker: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A daemon, and a connection to a worker that it has forked, which runs this code for each task."""
    tmp_path.joinpath("pyspark_tried_worker.py").write_text(worker)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(["src", str(tmp_path)]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [local_worker_python(), "-m", "pyspark.daemon", "pyspark_tried_worker"]
    with (
        tempfile.TemporaryDirectory() as sockets,  # their paths must be short
        subprocess.Popen(
            command,
            env={**environment, "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as daemon,
    ):
        assert daemon.stdout is not None
        length = received(daemon.stdout.read)
        path = daemon.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as spark:
            spark.settimeout(TIMEOUT_S)
            spark.connect(path)
            yield daemon, spark


def received(read: Callable[[int], bytes]) -> int:
    (number,) = struct.unpack("!i", read(4))
    return int(number)


def what_is_printed(tmp_path: Path, *, failing: str = "") -> str:
    """What a worker prints that Spark has hung up on."""
    with spark_connected(tmp_path, LATE.format(failing=failing)) as (daemon, spark):
        worker = received(spark.recv)
        spark.close()
        wait_until(lambda: not Path(f"/proc/{worker}").exists(), timeout_s=TIMEOUT_S)
        _out, printed = daemon.communicate(timeout=TIMEOUT_S)
        return printed.decode()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_worker_that_spark_has_hung_up_on_ends_without_a_word(tmp_path: Path) -> None:
    assert what_is_printed(tmp_path) == ""


def test_any_other_failure_is_printed(tmp_path: Path) -> None:
    assert "RuntimeError: broken" in what_is_printed(tmp_path, failing="raise RuntimeError('broken')")


def test_what_a_worker_has_loaded_is_left_out_of_collections_from_its_second_task_on(tmp_path: Path) -> None:
    with spark_connected(tmp_path, COUNTING) as (_daemon, spark):
        received(spark.recv)
        counts = []
        for _ in range(3):
            spark.sendall(b".")
            counts.append(received(spark.recv))
    assert counts[0] == 0
    assert counts[1] > 1000
    assert counts[2] == counts[1]
