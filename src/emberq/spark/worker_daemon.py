"""PySpark's daemon, which forks the workers of Spark: silent about closed connections, and quick.

**Closed connections.** Spark closes the connection of a worker that was idle for a minute, and those of all workers
when it stops. The worker then writes what is left in its buffer to a closed socket, and PySpark prints a traceback on
the terminal of the command that runs Spark; from 3.13 on, so does Python, when it closes the file behind the buffer.
Nothing is lost: the worker was to end anyway.

**Between tasks** PySpark collects garbage, which looks at every object of every module that is loaded: 60 ms of
processor time, as much as reading 100,000 rows takes here. What the modules hold is never garbage. So a worker that has
done its first task takes all that it holds then out of collections (`gc.freeze`), and the next ones take no time.

**What workers load.** Each would import format("nsq") and Arrow behind the fork, which takes it 0.2 s before its first
row. They are imported before, once.

The launcher for workers (`java.local_worker_python`) starts this module in place of `pyspark.daemon`. Every other
failure is printed as PySpark does it.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

from pyspark import daemon

WORKER_ENDS = 1
"""The daemon then waits for the connection to be closed, and ends the worker."""

CLOSED = (BrokenPipeError, ConnectionResetError)

_spark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one task, in a forked process. Called again for the next task on the same connection."""
    try:
        status = _spark_worker(sock, authenticated)
    except CLOSED:
        return WORKER_ENDS
    if not gc.get_freeze_count():
        gc.collect()  # what the task has left
        gc.freeze()
    return status


def print_unless_closed(failure: sys.UnraisableHookArgs) -> None:
    """Print a failure that no code can handle, unless it is that of a closed connection."""
    if not isinstance(failure.exc_value, CLOSED):
        sys.__unraisablehook__(failure)


def main() -> None:
    import emberq.spark.source  # noqa: F401

    sys.unraisablehook = print_unless_closed
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"  # PySpark then raises it instead of printing it
    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
