"""PySpark's daemon, which forks the workers of Spark, silent about connections that Spark has closed.

Spark closes the connection of a worker that had nothing to do for a minute, and those of all workers when it stops. The
worker then finds a closed socket when it writes what is left in its buffer, and PySpark prints a traceback, on the
terminal of the command that runs Spark. Nothing was lost: the worker ends as it was meant to.

`worker_python` starts this module in place of `pyspark.daemon`. Every other failure is printed as PySpark does it.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

WORKER_ENDS = 1
"""The daemon then waits for the connection to be closed, and ends the worker."""

_spark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one connection of Spark, in a forked process."""
    try:
        return _spark_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return WORKER_ENDS


def main() -> None:
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"  # raise the failure; without it PySpark prints it
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
