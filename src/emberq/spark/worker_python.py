"""The Python that Spark starts its workers with, on this machine.

Spark puts `pyspark.zip` in front of everything else on a worker's path. Python cannot keep compiled modules in a zip,
so every worker compiles PySpark anew: a second of processor time, where the installed package takes a quarter. There
are several kinds of workers, and each query of a stream has one of its own; on a busy machine some are then later than
Spark waits for them ("Python worker failed to connect back").

So workers are started by a script that takes Spark's zips off the path and becomes Python. The installed package has
the same modules, for it is the one that Spark itself was started from. On a cluster workers may have nothing but the
zips: there Python is started as Spark does it.

The script also starts our `worker_daemon` where Spark asks for PySpark's, which prints tracebacks for no reason.
"""

from __future__ import annotations

import shlex
import sys

from emberq.spark.launcher import install_launcher

_SCRIPT = """\
#!/bin/sh
# Runs Python for a Spark worker, without Spark's zips on its path: the installed PySpark starts four times as fast.
# Our daemon for workers takes the place of PySpark's.
kept=
IFS=:
for folder in $PYTHONPATH; do
    case $folder in
        */pyspark.zip | */py4j-*-src.zip | "") ;;
        *) kept=${{kept:+$kept:}}$folder ;;
    esac
done
unset IFS
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m emberq.spark.worker_daemon "$@"
fi
PYTHONPATH=$kept exec {python} "$@"
"""


def local_worker_python() -> str:
    """What PYSPARK_PYTHON should be for workers on this machine."""
    try:
        return str(install_launcher("python", _SCRIPT.format(python=shlex.quote(sys.executable))))
    except OSError:
        return sys.executable  # slower, and right
