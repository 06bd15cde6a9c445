"""The daemon of Spark's workers, started as Spark starts it, with a worker that writes to a closed connection."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

from emberq.spark.java import local_worker_python
from tests.support.waiting import wait_until

WORKER = """
import os, sys, time

def main(infile, outfile):
    infile.read()                       # until Spark has closed the connection
    {failing}
    outfile.write(b"too late")
"""
TIMEOUT_S = 60.0


def what_is_printed(tmp_path: Path, *, failing: str = "") -> str:
    """What a worker prints that Spark has hung up on."""
    tmp_path.joinpath("pyspark_late_worker.py").write_text(WORKER.format(failing=failing))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(["src", str(tmp_path)]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
    }
    command = [local_worker_python(), "-m", "pyspark.daemon", "pyspark_late_worker"]
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
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        path = daemon.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as spark:
            spark.connect(path)
            (worker,) = struct.unpack("!i", spark.recv(4))
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
