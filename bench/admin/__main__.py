"""`python -m bench.admin`: nsqadmin on clusters of 1,000 topics and 80 nodes.

    spread   each topic on 8 of the nodes, as clusters of that size are
    full     each topic on every node, the most that can be: 240,000 rows of figures

With `--browser` it also looks at the pages in Chromium. With `--week` nsqadmin starts with a week of history on disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.admin.history import fill_week, measure_history, restarted
from bench.admin.measurement import Figure, measure
from bench.admin.nsqadmin import Nsqadmin
from bench.admin.simulated_cluster import SimulatedCluster, Size
from bench.failure import LoadFailure
from bench.machine import description

SHAPES = {"spread": 8, "full": 80}
"""Nodes that each topic is on."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.admin", description="Measure nsqadmin on a large cluster.")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="how topics lie on nodes; both if not given")
    parser.add_argument("--browser", action="store_true", help="look at the pages in Chromium, too")
    parser.add_argument("--week", action="store_true", help="have a week of history on disk")
    options = parser.parse_args(arguments)
    print(description())
    try:
        for shape in options.shape or SHAPES:
            if options.week:
                _run_with_history(shape)
            else:
                _run(shape, with_browser=options.browser)
    except LoadFailure as failure:
        print(f"FAILED {failure}", file=sys.stderr)
        return 1
    return 0


def _size(shape: str) -> Size:
    size = Size(nodes_per_topic=SHAPES[shape])
    print(f"\n{shape}: {size.topics:,} topics, {size.nodes} nodes, each topic on {size.nodes_per_topic}")
    return size


def _run_with_history(shape: str) -> None:
    with SimulatedCluster(_size(shape)) as cluster, TemporaryDirectory(prefix="history-") as folder:
        _show([fill_week(Path(folder), cluster)])
        with restarted(Path(folder), cluster) as (admin, figures):
            _show(figures)
            _show(measure(admin))
            _show(measure_history(admin))


def _run(shape: str, *, with_browser: bool) -> None:
    with (
        SimulatedCluster(_size(shape)) as cluster,
        Nsqadmin(lookupd_address=cluster.lookupd_address) as admin,
    ):
        _show(measure(admin))
        if with_browser:
            from bench.admin.browser import measure_pages

            _show(measure_pages(admin))


def _show(figures: Iterable[Figure]) -> None:
    for figure in figures:
        print(f"    {figure.name:52} {figure.text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
