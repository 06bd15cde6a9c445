"""PySpark's daemon, which forks the workers of Spark, silent about connections that Spark has closed.

Spark closes the connection of a worker that was idle for a minute, and those of all workers when it stops. The worker
then writes what is left in its buffer to a closed socket, and PySpark prints a traceback on the terminal of the command
that runs Spark. Nothing is lost: the worker was to end anyway.

The launcher for workers (`java.local_worker_python`) starts this module in place of `pyspark.daemon`. Every other
failure is printed as PySpark does it.
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
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"  # PySpark then raises it instead of printing it
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
