"""`python -m bench.spark`: measure, print, and leave nothing behind. Exit code 1 when a run failed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import machine
from bench.connection import reason
from bench.failure import LoadFailure
from bench.report import quantity
from bench.server import Binary
from bench.spark.work import FILES, OURS, WORKS, Bench, Work, prepare_files
from emberq.spark import session

DRIVER_MEMORY = "2g"


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    works = [work for work in WORKS if not options.only or work.name in options.only]
    load_average = os.getloadavg()[0]
    with TemporaryDirectory(prefix="bench-spark-", dir=options.data_parent) as folder:
        spark = session("bench", config={"spark.ui.enabled": False, "spark.driver.memory": DRIVER_MEMORY})
        spark.sparkContext.setLogLevel("ERROR")
        try:
            bench = Bench(spark=spark, nsqd=Binary(path=options.nsqd), row_count=options.rows, folder=Path(folder))
            prepare_files(bench)
            failures = _measure(works, bench, rounds=options.rounds)
        finally:
            spark.stop()
    print(f"\n{machine.description()}; {options.rows:,} rows; load average before: {load_average:.2f}")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def _measure(works: Sequence[Work], bench: Bench, *, rounds: int) -> list[str]:
    """Round 0 is not counted: in it Java compiles what it will run again."""
    failures = []
    print("| work | nsq | files | ratio | at least | rounds |\n|---|---|---|---|---|---|")
    for work in works:
        values: dict[str, list[float]] = {side: [] for side in work.sides}
        for round_number in range(rounds + 1):
            for side, measure in work.sides.items():
                try:
                    value = measure(bench)
                except (LoadFailure, OSError) as failure:
                    failures.append(f"{work.name}, {side}, round {round_number}: {reason(failure)}")
                    continue
                print(f"{work.name} {side} round {round_number}: {quantity(value, work.unit)}", file=sys.stderr)
                if round_number:
                    values[side].append(value)
        if values[OURS]:
            print(_line(work, values), flush=True)
    return failures


def _line(work: Work, values: dict[str, list[float]]) -> str:
    ours = median(values[OURS])
    files = median(values[FILES]) if values.get(FILES) else None
    cells = [
        work.name,
        quantity(ours, work.unit),
        "" if files is None else quantity(files, work.unit),
        "" if files is None else f"{ours / files:.2f} x",
        quantity(work.at_least, work.unit),
        ", ".join(quantity(value, "") for value in values[OURS]),
    ]
    return f"| {' | '.join(cells)} |"


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {work.name:<18}{work.summary}" for work in WORKS)
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description="Measure NSQ with Spark, beside Spark with Parquet files.",
        epilog=f"works:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    nsqd = Path(sys.executable).parent / "nsqd"
    parser.add_argument("--nsqd", type=Path, default=nsqd, metavar="PATH", help="nsqd to start (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=[work.name for work in WORKS], metavar="NAME", help="these works")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs that count (default: %(default)s)")
    parser.add_argument("--data-parent", type=Path, metavar="DIR", help="where the data folders are made")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
