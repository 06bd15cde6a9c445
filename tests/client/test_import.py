"""What a program gets that uses the client and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = {
    "nsqd",
    "lookupd",
    "broker",
    "storage",
    "http.server",
    "http.router",
    "cluster",
    "admin",
    "tools",
    "spark",
    "cli",
    "embedded",
}
SLOW = {
    "uvloop",
    "re2",
    "OpenSSL",
    "cryptography",
    "multiprocessing",
    "opentelemetry",
    "prometheus_client",
    "pyspark",
    "pyarrow",
}
"""Packages that take their time, and are imported where they are used or not at all."""


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has imported behind this statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return set(output.split())


def test_the_package_itself_imports_next_to_nothing() -> None:
    assert not modules_after("import emberq") & {"asyncio", "emberq.client", "ssl", "socket"}


@pytest.mark.parametrize("statement", ["import emberq.client", "from emberq.client import Consumer, Producer"])
def test_the_client_brings_in_no_server_and_nothing_slow(statement: str) -> None:
    modules = modules_after(statement)
    assert "emberq.client.consumer" in modules
    assert not {f"emberq.{name}" for name in SERVER} & modules
    assert not SLOW & modules
