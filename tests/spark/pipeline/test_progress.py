"""What a line of progress says, out of what Spark tells of a batch. Without Spark: its events come as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emberq.spark.pipeline.progress import MAX_SAMPLES_CHARS, ProgressListener, QueryProgress, QuerySign, QueryState

RUN = "1d6cd5f8-7d4b-4b0a-9b33-0d6e5f1a6b01"
OFFSETS = {"127.0.0.1:4151": {"clicks": {"journal": "0b5f", "offset": 120}}}


class Heard:
    """A listener of the pipeline `shop`, whose query `counts` Spark knows as `shop/counts`."""

    def __init__(self) -> None:
        self.news: list[QueryProgress | QuerySign] = []
        self.listener = ProgressListener("shop", {"shop/counts": "counts"}, self.news.append)

    def batch(self, **changes: Any) -> QueryProgress:
        """What is made of a batch of 100 messages, 5 of them bad, that took two seconds."""
        self.listener.take(json.dumps(EVENT | changes))
        progress = self.news[-1]
        assert isinstance(progress, QueryProgress)
        return progress


def source(rows: int, *, offsets: object = OFFSETS, latest: object = OFFSETS) -> dict[str, Any]:
    return {"description": "", "startOffset": None, "endOffset": offsets, "latestOffset": latest, "numInputRows": rows}


def offsets(offset: int) -> dict[str, Any]:
    return {"127.0.0.1:4151": {"clicks": {"journal": "0b5f", "offset": offset}}}


EVENT: dict[str, Any] = {
    "id": RUN,
    "runId": RUN,
    "name": "shop/counts",
    "timestamp": "2026-11-15T06:00:10.000Z",
    "batchId": 7,
    "batchDuration": 2000,
    "durationMs": {"triggerExecution": 2000, "addBatch": 1500},
    "eventTime": {"watermark": "2026-11-15T05:58:00.000Z"},
    "stateOperators": [],
    "sources": [source(100)],
    "sink": {"description": "", "numOutputRows": -1},
    "numInputRows": 100,
    "observedMetrics": {
        "emberq_clicks": {
            "messages": 100,
            "bad": 5,
            "rule known": 2,
            "samples": ["?", "{"],
            "samples known": ["a", "a"],
        },
        "emberq view pages": {
            "rule short": 1,
            "rule long": 0,
            "samples short": ["b", "c"],
            "samples long": [None, None],
        },
        "emberq output": {"rows": 40},
    },
}


def test_a_batch_tells_what_it_read_wrote_and_how_long_its_parts_took() -> None:
    progress = Heard().batch()
    assert (progress.pipeline, progress.query, progress.batch) == ("shop", "counts", 7)
    assert (progress.rows, progress.rows_out) == (100, 40)
    assert (progress.messages, progress.bad) == ({"clicks": 100}, {"clicks": 5})
    assert progress.failed_rules == {"clicks.known": 2, "pages.long": 0, "pages.short": 1}
    assert progress.samples == {"clicks": ["?", "{"], "clicks.known": ["a"], "pages.short": ["b", "c"]}
    assert (progress.duration_ms, progress.durations_ms) == (2000, {"addBatch": 1500, "triggerExecution": 2000})
    assert progress.watermark == "2026-11-15T05:58:00.000Z"
    assert progress.offsets == (OFFSETS,)
    assert (progress.state, progress.error) == (QueryState.RUNNING, "")


def test_samples_are_bounded_in_all() -> None:
    observed = {f"emberq view v{number}": {"samples long": ["x" * 300, "y" * 300]} for number in range(100)}
    samples = Heard().batch(observedMetrics=observed).samples
    assert 7000 < sum(len(text) for texts in samples.values() for text in texts) <= MAX_SAMPLES_CHARS


def test_rows_arrive_and_leave_over_the_time_since_the_batch_before() -> None:
    heard = Heard()
    first = heard.batch()
    assert (first.rows_per_second, first.rows_in_per_second, first.rows_out_per_second) == (50.0, 50.0, 20.0)
    second = heard.batch(timestamp="2026-11-15T06:00:20.000Z")  # ten seconds later
    assert (second.rows_per_second, second.rows_in_per_second, second.rows_out_per_second) == (50.0, 10.0, 4.0)


def test_a_sink_that_counts_is_believed() -> None:
    assert Heard().batch(sink={"description": "", "numOutputRows": 39}).rows_out == 39


def test_rows_that_nobody_counts_are_unknown() -> None:
    progress = Heard().batch(observedMetrics={})
    assert (progress.rows_out, progress.rows_out_per_second) == (None, None)


def test_a_batch_that_took_no_time_has_no_rates() -> None:
    progress = Heard().batch(durationMs={})
    assert (progress.rows_per_second, progress.rows_in_per_second, progress.rows_out_per_second) == (0.0, 0.0, 0.0)


def test_figures_are_those_of_the_end_of_the_batch() -> None:
    progress = Heard().batch()
    assert (progress.time, progress.as_of) == ("2026-11-15T06:00:10.000Z", "2026-11-15T06:00:12.000Z")


def test_lag_is_what_the_journals_had_beyond_the_batch_when_it_was_planned() -> None:
    heard = Heard()
    assert heard.batch().lag == 0
    assert heard.batch(sources=[source(100, latest=offsets(150))]).lag == 30
    assert heard.batch(sources=[source(100, latest=None)]).lag is None
    assert heard.batch(sources=[source(100, offsets={"spool": "0b5f", "next": 4})]).lag is None


def test_an_offset_that_comes_as_text_is_read_too() -> None:
    assert Heard().batch(sources=[source(100, offsets=json.dumps(OFFSETS))]).offsets == (OFFSETS,)


def test_batches_of_other_queries_are_not_told_of() -> None:
    heard = Heard()
    heard.batch()
    told = list(heard.news)
    heard.batch(name="another")
    heard.batch(name=None)
    assert heard.news == told


def test_an_event_of_spark_is_asked_for_its_json_and_for_nothing_else() -> None:
    """Each question is a call into Java: PySpark's own listener asks 600 of them, and falls behind."""

    class JavaEvent:
        def progress(self) -> JavaEvent:
            return self

        def json(self) -> str:
            return json.dumps(EVENT)

    heard = Heard()
    heard.listener.onQueryProgress(JavaEvent())
    assert [news.query for news in heard.news] == ["counts"]


def test_what_is_not_understood_is_logged_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    heard.batch()
    heard.batch(batchId=8, sources="none")
    assert len(heard.news) == 1
    assert "not understood" in caplog.text


def test_a_sign_of_life_repeats_what_is_known_and_counts_nothing_again() -> None:
    progress = Heard().batch()
    sign = QuerySign(query="counts", time="2026-11-15T06:01:00.000Z", state=QueryState.FAILED, error="no disk")
    told = progress.sign_of_life(sign)
    assert (told.state, told.error, told.time) == ("failed", "no disk", "2026-11-15T06:01:00.000Z")
    assert (told.batch, told.watermark, told.offsets) == (7, progress.watermark, progress.offsets)
    assert (told.rows, told.rows_out, told.duration_ms, told.messages, told.bad) == (0, 0, 0, {}, {})


def test_rates_stay_while_there_is_something_to_read() -> None:
    progress = Heard().batch()
    sign = QuerySign(query="counts", time="2026-11-15T06:01:00.000Z")
    assert progress.sign_of_life(sign, lag=20).rows_in_per_second == 50.0
    assert progress.sign_of_life(sign, lag=0).rows_in_per_second == 0.0


def test_a_source_is_described_with_how_far_it_is_behind_as_kafka_s_is() -> None:
    two = offsets(120) | {"b:1": {"clicks": {"journal": "77aa", "offset": 5}}}
    latest = offsets(130) | {"b:1": {"clicks": {"journal": "77aa", "offset": 5}}}
    progress = Heard().batch(sources=[source(100, offsets=two, latest=latest), source(1, offsets={"spool": 7})])
    assert progress.sources == (
        {
            "description": "nsq: clicks on 127.0.0.1:4151, clicks on b:1",
            "metrics": {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 10, "avgOffsetsBehindLatest": 5.0},
        },
        {"description": "nsq", "metrics": {}},
    )
