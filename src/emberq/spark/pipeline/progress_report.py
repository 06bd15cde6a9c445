"""Progress on its way to people: completed with the lag, shown, and published to a topic. In a thread of its own.

A figure is never old: while no batch of a query ends, its figures are told again every two seconds, with the lag of
that moment. The lag subtracts two offsets of one moment. A batch is told of within milliseconds of its end, so it is
the journal's end now, less the batch's end. A batch that is told of late keeps the lag that it had when it was planned.

Nothing here holds a query up. What cannot be published is dropped, and said once; an nsqd that does not answer is left
alone for a while, so that what is shown does not wait for it again and again.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime

from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.spark.address_book import AddressBook
from emberq.spark.error import NsqSparkError
from emberq.spark.option import Use, parse_options
from emberq.spark.pipeline.journal_lag import JournalLag, journal_offsets
from emberq.spark.pipeline.query_progress import QueryProgress, QuerySign, QueryState, rfc3339
from emberq.spark.setting import Access

SIGN_INTERVAL_S = 2.0
"""How old the figures of a query may become; a page or a scrape that shows them adds its own few seconds."""
LATE_S = 1.0
"""A batch told of later than this after its end is not compared with how far the journals reach now."""
MAX_WAITING = 1000
"""Lines that wait to be told; more than that come only if nsqd does not answer for long."""
ANSWER_TIMEOUT_S = 2.0
PAUSE_S = 10.0
"""How long nothing is published after that failed."""
CLOSE_TIMEOUT_S = 2.0
"""For the last lines: a stop is not held up by an nsqd that does not answer."""

_log = logging.getLogger(__name__)


class ProgressReporter:
    """From `start` to `close`; `put` may be called from any thread."""

    def __init__(
        self,
        pipeline: str,
        *,
        access_options: Mapping[str, str],
        topic: str,
        on_progress: Callable[[QueryProgress], None] | None,
        clock: Clock | None = None,
    ) -> None:
        """Without `access_options` the lag is unknown and nothing is published; nor is it with an empty `topic`."""
        self._pipeline = pipeline
        self._on_progress = on_progress
        self._clock = clock or SystemClock()
        access = _access(access_options)
        self._lag = JournalLag(access)
        self._publisher = ProgressPublisher(access, topic) if access is not None and topic else None
        self._last: dict[str, QueryProgress] = {}
        """Of each query, in the reporter's thread."""
        self._waiting: queue.Queue[QueryProgress | QuerySign | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="emberq-progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, news: QueryProgress | QuerySign) -> None:
        """Tell it soon, or never."""
        try:
            self._waiting.put_nowait(news)
        except queue.Full:
            _log.warning("progress of %s is left out: more than %d lines wait", news.query, MAX_WAITING)

    def close(self) -> None:
        """Returns when what waits is told, or cannot be."""
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def give_signs(self) -> None:
        """Tell again of running queries whose figures grow old. In the reporter's thread."""
        now = self._now()
        for query, last in list(self._last.items()):
            if last.state is QueryState.RUNNING and _seconds(last.as_of, now) >= SIGN_INTERVAL_S:
                self._tell(QuerySign(query=query, time=now))

    def tell_next(self, *, timeout_s: float = 0.0) -> bool:
        """Tell what waits longest, or comes within that time. False if the end came. In the reporter's thread."""
        try:
            news = self._waiting.get(timeout=timeout_s)
        except queue.Empty:
            return True
        if news is None:
            return False
        self._tell(news)
        return True

    def _run(self) -> None:
        while self.tell_next(timeout_s=SIGN_INTERVAL_S / 4):
            self.give_signs()
        self._lag.close()
        if self._publisher is not None:
            self._publisher.close()

    def _tell(self, news: QueryProgress | QuerySign) -> None:
        progress = self._completed(news)
        self._last[progress.query] = progress
        if self._on_progress is not None:
            self._on_progress(progress)
        if self._publisher is not None:
            self._publisher.publish(progress)

    def _completed(self, news: QueryProgress | QuerySign) -> QueryProgress:
        if isinstance(news, QuerySign):
            blank = QueryProgress(pipeline=self._pipeline, query=news.query, time=news.time)
            last = self._last.get(news.query, blank)
            return last.sign_of_life(news, lag=self._lag_behind(last))
        if _seconds(news.as_of, self._now()) > LATE_S:
            return news
        return replace(news, lag=self._lag_behind(news))

    def _lag_behind(self, progress: QueryProgress) -> int | None:
        """What the journals have now beyond the last batch; None: unknown."""
        offsets = journal_offsets(progress.offsets)
        return self._lag.behind(offsets) if offsets else None

    def _now(self) -> str:
        return rfc3339(datetime.fromtimestamp(self._clock.wall_ns() / NS_PER_SECOND, UTC))


class ProgressPublisher:
    """Publishes progress to a topic. Owned by one thread."""

    def __init__(self, access: Access, topic: str, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._book = AddressBook(access)
        self._topic = topic
        self._monotonic_s = monotonic_s
        self._paused_until_s = 0.0
        self._has_failed = False

    def publish(self, progress: QueryProgress) -> None:
        """Publish it now, or never."""
        if self._monotonic_s() < self._paused_until_s:
            return
        try:
            self._post(json.dumps(asdict(progress)).encode())
        except NsqSparkError as failure:
            if not self._has_failed:
                _log.warning("progress cannot be published to topic %s: %s", self._topic, failure)
            self._has_failed = True
            self._paused_until_s = self._monotonic_s() + PAUSE_S
        else:
            self._has_failed = False

    def close(self) -> None:
        """Close the connections."""
        self._book.close()

    def _post(self, body: bytes) -> None:
        nsqds = self._book.nsqds()
        if not nsqds:
            raise NsqSparkError("nsqlookupd knows no nsqd")
        peer = self._book.peer(nsqds[0])
        headers = {"Content-Length": str(len(body))}
        peer.send("POST", "/pub", query={"topic": self._topic}, body=[body], headers=headers)
        peer.receive()


def _access(options: Mapping[str, str]) -> Access | None:
    if not options:
        return None
    access = Access.of(parse_options(options, Use.SINK))
    return replace(access, request_timeout_s=min(access.request_timeout_s, ANSWER_TIMEOUT_S))


def _seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds() if since else 0.0
