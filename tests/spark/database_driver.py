"""A pipeline in a process of its own, to be killed: streams topics into a table of PostgreSQL.

    python -m tests.spark.database_driver '{"master": ..., "folder": ..., "url": ..., "options": {...}, ...}'

It runs until it is told to end by SIGTERM; the last one ends by itself when all that there is has been read.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Mapping

from emberq.spark import session
from emberq.spark.pipeline import BodyFormat, Pipeline, PipelineRun, Sink, Source, View
from emberq.spark.pipeline.model import AVAILABLE_NOW
from tests.spark.archiving_driver import SETTINGS
from tests.support.postgres import PASSWORD_VARIABLE, USER

QUERY = "rows"
TABLE = "bodies"


def pipeline(*, folder: str, url: str, options: Mapping[str, str], is_last: bool) -> Pipeline:
    """Rows of a topic to the table; the last time to the end of what is there."""
    own = {key: text for key, text in options.items() if key not in ("nsqd", "topic")}
    sink = Sink(view="bodies", format="jdbc", url=url, table=TABLE, user=USER, password_env=PASSWORD_VARIABLE)
    return Pipeline(
        name="chaos",
        checkpoint=f"{folder}/checkpoint",
        nsqd=tuple(options["nsqd"].split(",")),
        trigger=AVAILABLE_NOW if is_last else "200ms",
        progress_topic="",
        sources={"messages": Source(topic=(options["topic"],), format=BodyFormat.TEXT, options=own)},
        views={"bodies": View(sql="SELECT text AS body, _nsqd AS nsqd, _offset AS number FROM messages")},
        sinks={QUERY: sink},
    )


def main() -> None:
    task = json.loads(sys.argv[1])
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
    spark = session("database", master=task.pop("master"), config=SETTINGS)
    run = PipelineRun(pipeline(**task), spark)
    try:
        run.start(until=told_to_end.is_set)
        run.wait(until=told_to_end.is_set)
    finally:
        run.stop()
        spark.stop()


if __name__ == "__main__":
    main()
