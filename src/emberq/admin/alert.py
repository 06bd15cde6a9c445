"""What is wrong now by the rules: found at every look at the cluster, told on pages, in charts and by a webhook.

    look ──findings──> what a rule holds of ──for──> firing ──holds no more──> resolved
                                    └── holds no more before that: forgotten

Nothing is asked of the cluster for it: the rules (`rule`) judge by the look, and of channels by the same states and
reasons as the page that lists them (`attention`). What a look does not know, because a node is silent, stays as it was:
the alerts of that node's topics neither begin nor end.

An alert that fires or is resolved leaves a mark in the charts, except for nodes that are silent or gone, which leave
one anyway (see `absence`).

**The webhook** is POSTed what has changed since the last message, all in one:

    {"version": 1, "via": "<our hostname>", "time": 1715931000.0, "firing_count": 3, "text": "FIRING …\\nRESOLVED …",
     "alerts": [{"rule": "Deep queue", "state": "firing", "severity": "warning", "topic": "orders",
                 "channel": "billing", "node": "", "value": 120000, "above": 100000, "since": 1715930400.0,
                 "until": null, "text": "120,000 messages wait"}]}

`state` is `firing` or `resolved`, which then has `until`. `text` is what chat programs show. A message that is not
taken is sent again, after a second, two, four and so on up to five minutes; what changes meanwhile goes with it, and of
an alert only its last state. One that the receiver refuses (400 to 499, but for 408 and 429) is dropped, because it
would refuse it again. No request and no look waits for any of this. The path and the query of the URL may be secret, so
the log names its host alone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from emberq.admin.absence import Presence
from emberq.admin.attention import ChannelState, Reason, channel_states
from emberq.admin.document import Document, Look
from emberq.admin.history import History
from emberq.admin.history_store import HistoryMark, Marks
from emberq.admin.rule import AlertSeverity, Condition, Rule, RuleFile
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.text import format_duration
from emberq.base.timers import Timers
from emberq.http.client import HttpClient, HttpQueryError, UnexpectedStatusError
from emberq.http.message import encode_json

MAX_ALERTS = 1_000
"""As many as are followed: of more an operator learns no more."""
MAX_SHOWN = 50
"""As many as the first page lists; the page of alerts lists all."""
MAX_RESOLVED = 50
"""As many as are remembered when they are over."""
MAX_MARKS = 20
"""As many marks as the alerts of one look leave: a thousand would push all others out of the charts."""

_log = logging.getLogger(__name__)


class AlertKey(NamedTuple):
    """What an alert is about."""

    rule: str
    topic: str = ""
    channel: str = ""
    node: str = ""


class RuleFinding(NamedTuple):
    """That a rule holds of something."""

    rule: Rule
    text: str
    value: float | None = None


# Judging


def findings(rules: Sequence[Rule], look: Look, history: History) -> dict[AlertKey, RuleFinding]:
    """Of what the rules hold in this look, however long; those of nodes first. May take long."""
    of_nodes = [rule for rule in rules if rule.when.is_of_nodes]
    of_channels = [rule for rule in rules if not rule.when.is_of_nodes]
    found = dict(_of_nodes(of_nodes, look))
    if of_channels:
        found.update(_of_channels(of_channels, look, history))
    return found


def _of_nodes(rules: Iterable[Rule], look: Look) -> Iterator[tuple[AlertKey, RuleFinding]]:
    for rule in rules:
        for node, text in _NODE_TEXTS[rule.when](look):
            if rule.concerns_node(node):
                yield AlertKey(rule.name, node=node), RuleFinding(rule, text)


def _silent(look: Look) -> Iterator[tuple[str, str]]:
    for absence in look.absences:
        if absence.presence is Presence.SILENT:
            yield absence.producer.node, "it does not answer"


def _gone(look: Look) -> Iterator[tuple[str, str]]:
    for absence in look.absences:
        if absence.is_gone and not absence.was_draining:
            held = absence.held()
            yield absence.producer.node, "it is gone" + (f", with {held:,} messages" if held else "")


def _unhealthy(look: Look) -> Iterator[tuple[str, str]]:
    for node, figures in look.survey.nodes.items():
        if not figures.is_healthy:
            yield node, f"it is not well: {figures.health.removeprefix('NOK - ')}"


_NODE_TEXTS: Mapping[Condition, Callable[[Look], Iterator[tuple[str, str]]]] = {
    Condition.NODE_SILENT: _silent,
    Condition.NODE_GONE: _gone,
    Condition.NODE_UNHEALTHY: _unhealthy,
}


def _of_channels(rules: Sequence[Rule], look: Look, history: History) -> Iterator[tuple[AlertKey, RuleFinding]]:
    rules_of_idle = [rule for rule in rules if rule.when in _OF_RATES]
    needs_reasons = any(rule.when in _REASONS for rule in rules)
    lacking = look.incomplete_topics()
    for state in channel_states(look, history):
        if state.topic in lacking:
            continue
        waits = state.total.depth > 0
        reasons = state.reasons if waits and needs_reasons else ()
        for rule in rules if waits else rules_of_idle:
            value = _value(rule.when, state, reasons, history)
            if value is not None and value > rule.above and rule.concerns(state.topic, state.channel):
                key = AlertKey(rule.name, state.topic, state.channel)
                yield key, RuleFinding(rule, _CHANNEL_TEXTS[rule.when](value), value)


_OF_RATES = frozenset({Condition.DEAD_LETTERS, Condition.REQUEUED})
"""What can be wrong with a channel in which nothing waits."""
_REASONS = {
    Condition.NO_CONSUMERS: Reason.NO_CONSUMERS,
    Condition.STUCK: Reason.STUCK,
    Condition.GROWING: Reason.GROWING,
    Condition.PAUSED: Reason.PAUSED,
}


def _value(when: Condition, state: ChannelState, reasons: Sequence[Reason], history: History) -> float | None:
    """What the rule's threshold is compared with; None if the rule does not hold anyway, or nothing is known."""
    rates, depth = state.rates, state.total.depth
    match when:
        case Condition.DEPTH:
            return depth
        case Condition.AGE:
            return history.waiting_s(state.topic, state.channel, depth)[0]
        case Condition.DEAD_LETTERS:
            return None if rates is None else rates.dead_lettered
        case Condition.REQUEUED:
            return None if rates is None else rates.requeued
        case _:
            if _REASONS[when] not in reasons:
                return None
            return rates.came - rates.left if when is Condition.GROWING and rates is not None else depth


_CHANNEL_TEXTS: Mapping[Condition, Callable[[float], str]] = {
    Condition.DEPTH: lambda value: f"{value:,.0f} messages wait",
    Condition.AGE: lambda value: f"the oldest message has waited for {format_duration(int(value) * NS_PER_SECOND)}",
    Condition.NO_CONSUMERS: lambda value: f"{value:,.0f} messages wait, and no consumer is connected",
    Condition.STUCK: lambda value: f"{value:,.0f} messages wait, and consumers finish none",
    Condition.GROWING: lambda value: f"the backlog grows by {value:,.1f} messages a second",
    Condition.DEAD_LETTERS: lambda value: f"{value:,.1f} messages a second are given up",
    Condition.REQUEUED: lambda value: f"{value:,.1f} deliveries a second fail",
    Condition.PAUSED: lambda value: f"{value:,.0f} messages wait, and it is paused",
}


# What is firing


@dataclass(slots=True, kw_only=True)
class Alert:
    """What a rule holds of, since when."""

    key: AlertKey
    finding: RuleFinding
    began_ns: int
    """By the monotonic clock."""
    since_ns: int
    """The same by the wall clock."""
    is_firing: bool = False
    until_ns: int | None = None
    """When it was resolved, by the wall clock."""

    @property
    def severity(self) -> AlertSeverity:
        return self.finding.rule.severity

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        return self.key.node or f"{self.key.topic} / {self.key.channel}"

    def document(self) -> Document:
        """The alert as pages and the webhook are told of it."""
        rule, value = self.finding.rule, self.finding.value
        return {
            **self.key._asdict(),
            "state": "resolved" if self.until_ns is not None else "firing" if self.is_firing else "pending",
            "severity": self.severity,
            "value": None if value is None else round(value, 2),
            "above": None if value is None else rule.shown_above,
            "since": _seconds(self.since_ns),
            "until": None if self.until_ns is None else _seconds(self.until_ns),
            "text": self.finding.text,
        }

    def mark(self, time_ns: int) -> HistoryMark:
        """What it leaves in the charts."""
        state = "resolved" if self.until_ns is not None else "firing"
        text = f"{self.finding.rule.name}: {self.finding.text if state == 'firing' else 'resolved'}"
        key = self.key
        return HistoryMark(time_ns, "alert", text, topic=key.topic, channel=key.channel, node=key.node, state=state)


def _seconds(time_ns: int) -> float:
    return time_ns // NS_PER_MS / 1000


class Alerts:
    """All alerts. Owned by the daemon."""

    def __init__(self, rules: RuleFile, marks: Marks, webhook: Webhook, *, clock: Clock) -> None:
        self.rules = rules
        self._marks = marks
        self._webhook = webhook
        self._clock = clock
        self._alerts: dict[AlertKey, Alert] = {}
        self._resolved: deque[Alert] = deque(maxlen=MAX_RESOLVED)
        self.left_off_count = 0
        """Findings of the last look that are not followed, because there are too many."""

    @property
    def is_wanted(self) -> bool:
        """Whether the cluster is to be looked at for the rules alone."""
        return self.rules.is_given or self._webhook.has_url

    def take(self, found: Mapping[AlertKey, RuleFinding], look: Look) -> None:
        """Go on with what was found in a look."""
        now_ns, changed = self._clock.monotonic_ns(), []
        self.left_off_count = max(len(found) - MAX_ALERTS, 0)
        for key, finding in islice(found.items(), MAX_ALERTS):
            alert = self._alerts.get(key)
            if alert is None:
                alert = Alert(key=key, finding=finding, began_ns=now_ns, since_ns=look.taken_ns)
                self._alerts[key] = alert
            alert.finding = finding
            if not alert.is_firing and now_ns - alert.began_ns >= finding.rule.for_ns:
                alert.is_firing = True
                changed.append(alert)
        changed += self._end(found, look)
        self._tell(changed, look.taken_ns)

    def _end(self, found: Mapping[AlertKey, RuleFinding], look: Look) -> Iterator[Alert]:
        """Take away what holds no more; what was firing is resolved."""
        names = {rule.name for rule in self.rules.current.rules}
        lacking = look.incomplete_topics()
        silent = {absence.producer.node for absence in look.silent}
        for key in [key for key in self._alerts if key not in found]:
            alert = self._alerts[key]
            is_unknown = key.topic in lacking or (
                key.node in silent and alert.finding.rule.when is Condition.NODE_UNHEALTHY
            )
            if is_unknown and key.rule in names:
                continue
            del self._alerts[key]
            if alert.is_firing:
                alert.until_ns = look.taken_ns
                self._resolved.append(alert)
                yield alert

    def _tell(self, changed: Sequence[Alert], time_ns: int) -> None:
        if not changed:
            return
        marked = [alert for alert in changed if alert.finding.rule.when not in _MARKED_ANYWAY]
        for alert in marked[:MAX_MARKS]:
            self._marks.add(alert.mark(time_ns))
        if len(marked) > MAX_MARKS:
            self._marks.add(HistoryMark(time_ns, "alert", f"{len(marked) - MAX_MARKS} more alerts", state="firing"))
        self._webhook.tell(changed, firing_count=sum(alert.is_firing for alert in self._alerts.values()))

    @property
    def firing(self) -> list[Alert]:
        """The gravest first, and of those the oldest."""
        firing = [alert for alert in self._alerts.values() if alert.is_firing]
        return sorted(
            firing, key=lambda alert: (alert.severity is not AlertSeverity.CRITICAL, alert.since_ns, alert.key)
        )

    def summary(self) -> Document:
        """What the first page tells: the gravest, and how many there are."""
        firing = self.firing
        return {"alerts": [alert.document() for alert in firing[:MAX_SHOWN]], "alert_count": len(firing)}

    def document(self) -> Document:
        """What the page of alerts tells."""
        pending = [alert for alert in self._alerts.values() if not alert.is_firing]
        return {
            "alerts": [alert.document() for alert in (*self.firing, *pending)],
            "resolved": [alert.document() for alert in reversed(self._resolved)],
            "left_off": self.left_off_count,
        }

    def counts(self) -> Counter[tuple[str, str]]:
        """How many are firing, by rule and severity; 0 for rules of which none is."""
        counts = Counter({(rule.name, rule.severity.value): 0 for rule in self.rules.current.rules})
        counts.update((alert.key.rule, alert.severity.value) for alert in self._alerts.values() if alert.is_firing)
        return counts


_MARKED_ANYWAY = frozenset({Condition.NODE_SILENT, Condition.NODE_GONE})


# The webhook

MAX_WAITING = 2_000
"""Changes that wait for a receiver that is slow; the oldest beyond are dropped."""
MAX_TOLD = 200
"""Changes in one message: some tens of kilobytes."""
MAX_LINES = 20
"""As many lines as a chat shows of one message."""
FIRST_REST_NS = 1 * NS_PER_SECOND
MAX_REST_NS = 300 * NS_PER_SECOND
STOP_SECONDS = 5.0
"""How long what waits may take when nsqadmin stops."""

_TRY_AGAIN = (408, 429)


class Webhook:
    """Sends what has changed. Owned by the daemon."""

    def __init__(self, http: HttpClient, url: Callable[[], str], *, clock: Clock, timers: Timers) -> None:
        """`url` says where to; empty: nowhere."""
        self._http = http
        self._url = url
        self._clock = clock
        self._waiting: dict[AlertKey, Document] = {}
        """The last state of each alert that has yet to be told, the oldest first."""
        self._firing_count = 0
        self._sender: asyncio.Task[None] | None = None
        self._has_news = asyncio.Event()
        self._is_rested = asyncio.Event()
        self._alarm = timers.alarm(self._is_rested.set)
        self._failure_count = 0
        """Messages that failed since the last one that was taken."""
        self.results: Counter[str] = Counter(taken=0, failed=0, refused=0, dropped=0)
        """Messages by what became of them; `dropped` counts changes."""

    @property
    def has_url(self) -> bool:
        return bool(self._url())

    @property
    def waiting_count(self) -> int:
        """Changes that have yet to be told."""
        return len(self._waiting)

    def start(self) -> None:
        self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def stop(self) -> None:
        """Send what waits, unless the receiver is not there; for at most STOP_SECONDS."""
        if self._sender is None:
            return
        if self._waiting and not self._failure_count:
            sending = asyncio.get_running_loop().create_task(self._until_told())
            await asyncio.wait([sending, self._sender], timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
        if self._waiting:
            _log.warning("%d alerts were not told", len(self._waiting))
        self._alarm.discard()
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)

    async def _until_told(self) -> None:
        while self._waiting and not self._failure_count:
            await asyncio.sleep(0.01)

    def tell(self, alerts: Iterable[Alert], *, firing_count: int) -> None:
        """Send these soon, in their present state; `firing_count` is how many are firing in all."""
        if not self.has_url:
            return
        self._firing_count = firing_count
        for alert in alerts:
            self._waiting.pop(alert.key, None)
            self._waiting[alert.key] = alert.document()
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self.results["dropped"] += 1
        self._has_news.set()

    async def _send_all(self) -> None:
        while True:
            await self._has_news.wait()
            if not self._waiting:
                self._has_news.clear()
                continue
            told = dict(islice(self._waiting.items(), MAX_TOLD))
            now_ns = self._clock.wall_ns()
            message = encode_message(list(told.values()), firing_count=self._firing_count, time_ns=now_ns)
            if await self._is_taken(message):
                self._failure_count = 0
                for key, document in told.items():
                    if self._waiting.get(key) is document:  # else it has changed meanwhile
                        del self._waiting[key]
            else:
                self._failure_count += 1
                await self._rest(min(FIRST_REST_NS << min(self._failure_count - 1, 10), MAX_REST_NS))

    async def _is_taken(self, message: bytes) -> bool:
        """Whether the receiver is done with the message: it has taken it, or never will."""
        url = self._url()
        if not url:
            return True
        try:
            await self._http.post(url, message, content_type="application/json")
        except UnexpectedStatusError as answer:
            if 200 <= answer.status < 300:
                self.results["taken"] += 1
                return True
            is_refused = 400 <= answer.status < 500 and answer.status not in _TRY_AGAIN
            self.results["refused" if is_refused else "failed"] += 1
            _log.error("webhook at %s answered with status %d", host_of(url), answer.status)
            return is_refused
        except HttpQueryError as failure:
            self.results["failed"] += 1
            _log.error("webhook at %s failed: %s", host_of(url), failure)
            return False
        self.results["taken"] += 1
        return True

    async def _rest(self, duration_ns: int) -> None:
        self._is_rested.clear()
        self._alarm.set(self._clock.monotonic_ns() + duration_ns)
        await self._is_rested.wait()


def encode_message(alerts: Sequence[Document], *, firing_count: int, time_ns: int) -> bytes:
    """What the webhook is sent: documents of alerts, how many are firing in all, and when."""
    lines = [_line(alert) for alert in alerts[:MAX_LINES]]
    if len(alerts) > MAX_LINES:
        lines.append(f"and {len(alerts) - MAX_LINES} more")
    return encode_json(
        {
            "version": 1,
            "via": socket.gethostname(),
            "time": _seconds(time_ns),
            "firing_count": firing_count,
            "text": "\n".join(lines),
            "alerts": list(alerts),
        }
    )


def _line(alert: Mapping[str, Any]) -> str:
    subject = alert["node"] or f"{alert['topic']} / {alert['channel']}"
    text = f": {alert['text']}" if alert["state"] == "firing" else ""
    return f"{alert['state'].upper()} {alert['rule']}: {subject}{text}"


def host_of(url: str) -> str:
    """What may be told of a URL whose path or query is a secret."""
    return urlsplit(url).netloc.rpartition("@")[2]
