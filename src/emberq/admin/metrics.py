"""nsqadmin's own /metrics: how it gets on with its looks at the cluster, its viewers and its alerts.

    # HELP nsqadmin_nodes Nsqds that nsqadmin knows, by state.
    # TYPE nsqadmin_nodes gauge
    nsqadmin_nodes{state="present"} 3

`FAMILIES` lists every metric. Figures of topics and channels are not among them: Prometheus gets those from the nsqds,
which it asks anyway. The path is guarded as all others are, so where users log in Prometheus has to show a password or
a secret (--http-secret-file).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from emberq.admin.live import Gatherer
from emberq.admin.webhook import Webhook
from emberq.base import metrics
from emberq.base.clock import NS_PER_SECOND
from emberq.base.metrics import (
    CONTENT_TYPE,
    PROCESS_FAMILIES,
    DaemonScrape,
    Family,
    ProcessStats,
    Sample,
    Sampler,
    connections_family,
    counter,
    gauge,
    info_family,
    labels,
    lag_families,
    read_process,
    single,
    start_time_family,
)
from emberq.cluster.survey import Survey
from emberq.http.message import Request, Response, plain

_DAEMON = "nsqadmin"


class AdminScrape(NamedTuple):
    """Where samples come from."""

    gatherer: Gatherer
    webhook: Webhook
    statuses: Counter[int]
    """Answers so far, by status."""
    scrape: DaemonScrape
    process: ProcessStats


class MetricsApi:
    """Answers GET /metrics. Owned by the table of routes."""

    def __init__(
        self, gatherer: Gatherer, webhook: Webhook, statuses: Counter[int], scrape: Callable[[], DaemonScrape]
    ) -> None:
        self._gatherer = gatherer
        self._webhook = webhook
        self._statuses = statuses
        self._scrape = scrape

    def get(self, _request: Request) -> Response:
        source = AdminScrape(self._gatherer, self._webhook, self._statuses, self._scrape(), read_process())
        return plain(metrics.render(FAMILIES, source), content_type=CONTENT_TYPE)


def _gatherer(value: Callable[[Gatherer], int | float]) -> Sampler[AdminScrape]:
    return single(lambda source: value(source.gatherer))


def _rounds(source: AdminScrape) -> Iterator[Sample]:
    yield labels(result="done"), source.gatherer.rounds.done_count
    yield labels(result="failed"), source.gatherer.rounds.failed_count


def _nodes(source: AdminScrape) -> Iterator[Sample]:
    look = source.gatherer.last_look
    states: Counter[str] = Counter(present=0, silent=0, gone=0)
    if look is not None:
        states["present"] = len(look.survey.nodes)
        states.update(absence.presence.value for absence in look.absences)
    for state, count in states.items():
        yield labels(state=state), count


def _seen(value: Callable[[Survey], int]) -> Sampler[AdminScrape]:
    """Of the last look; 0 before the first one."""
    return _gatherer(lambda gatherer: 0 if gatherer.last_look is None else value(gatherer.last_look.survey))


def _alerts(source: AdminScrape) -> Iterator[Sample]:
    for (rule, severity), count in sorted(source.gatherer.alerts.counts().items()):
        yield labels(rule=rule, severity=severity), count


def _webhook_results(source: AdminScrape) -> Iterator[Sample]:
    for result, count in source.webhook.results.items():
        yield labels(result=result), count


def _requests(source: AdminScrape) -> Iterator[Sample]:
    for status, count in sorted(source.statuses.items()):
        yield labels(status=str(status)), count


FAMILIES: tuple[Family[AdminScrape], ...] = (
    info_family(_DAEMON),
    start_time_family(_DAEMON),
    connections_family(_DAEMON),
    # Looks at the cluster.
    counter("nsqadmin_rounds_total", "Looks at the cluster, by result.", _rounds),
    counter(
        "nsqadmin_round_seconds_total",
        "Time that looks at the cluster took, without those that failed.",
        _gatherer(lambda gatherer: gatherer.rounds.total_ns / NS_PER_SECOND),
    ),
    gauge(
        "nsqadmin_round_last_seconds",
        "Time that the last look at the cluster took.",
        _gatherer(lambda gatherer: gatherer.rounds.last_ns / NS_PER_SECOND),
    ),
    gauge("nsqadmin_nodes", "Nsqds that nsqadmin knows, by state.", _nodes),
    gauge("nsqadmin_topics", "Topics in the last look.", _seen(lambda survey: len(survey.channels))),
    gauge(
        "nsqadmin_channels",
        "Channels in the last look.",
        _seen(lambda survey: len(survey.totals) - len(survey.channels)),
    ),
    # Alerts.
    gauge("nsqadmin_alerts", "Alerts that are firing, by rule.", _alerts),
    gauge(
        "nsqadmin_alerts_left_off",
        "What rules hold of and is not followed, because there is too much.",
        _gatherer(lambda gatherer: gatherer.alerts.left_off_count),
    ),
    gauge(
        "nsqadmin_alerts_silenced",
        "Alerts that are firing, and of which the webhook is not told for now.",
        _gatherer(lambda gatherer: gatherer.alerts.silenced_count),
    ),
    counter("nsqadmin_webhook_messages_total", "Messages to the webhook, by result.", _webhook_results),
    gauge(
        "nsqadmin_webhook_waiting",
        "Changes that the webhook has yet to be told.",
        single(lambda source: source.webhook.waiting_count),
    ),
    # Viewers and requests.
    gauge("nsqadmin_live_viewers", "Browsers that look now.", _gatherer(lambda gatherer: gatherer.stream_count)),
    counter("nsqadmin_http_requests_total", "Requests that were answered, by status.", _requests),
    # The event loop and the process.
    *lag_families(_DAEMON),
    *PROCESS_FAMILIES,
)
"""Every metric there is, in the order they are written."""
