"""What is wrong now by the rules: found at every look at the cluster, told on pages and in charts.

    look ──findings──> what a rule holds of ──for──> firing ──holds no more──> resolved
                                    └── holds no more before that: forgotten

Nothing is asked of the cluster for it: the rules (`rule`) judge by the look, and of channels by the same states and
reasons as the page that lists them (`attention`). What a look does not know, because a node is silent, stays as it was:
the alerts of that node's topics neither begin nor end.

An alert that fires or is resolved leaves a mark in the charts, except for nodes that are silent or gone, which leave
one anyway (see `absence`).

The webhook (`webhook`) is told what has changed, unless an operator has silenced it (`silence`). When a silence is
over, the webhook is told what it missed: alerts that are firing still, and the end of those it knew of. It hears
nothing of an alert that began and ended meanwhile. What was on its way when the silence began still arrives.

**Over a restart**, with --history-path, the alerts that are firing, those that were resolved lately, and silences are
kept in the file of the history (`history_store`), with whether the webhook was told. So an alert that goes on is not
told again, one that is over is, and a change that the receiver had not taken yet is sent then. A node that was gone
stays gone; what it held is forgotten. What was not firing yet begins anew.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from emberq.admin.absence import Presence
from emberq.admin.attention import ChannelState, OldestAge, Reason, channel_states
from emberq.admin.document import Document
from emberq.admin.history import History
from emberq.admin.history_store import HistoryMark, HistoryStore, KeptKind, Marks
from emberq.admin.rule import AlertSeverity, Condition, Rule, RuleError, RuleFile
from emberq.admin.silence import Silence, Silences
from emberq.admin.view import Look
from emberq.admin.webhook import ToldKey, Webhook
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.text import format_duration

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
    is_sure: bool = True
    """False if it may hold as well as not: then nothing begins or ends by it."""


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
            value, is_least = _value(rule.when, state, reasons, history)
            holds = value is not None and value > rule.above
            if value is not None and (holds or is_least) and rule.concerns(state.topic, state.channel):
                key = AlertKey(rule.name, state.topic, state.channel)
                yield key, RuleFinding(rule, _CHANNEL_TEXTS[rule.when](value), value, is_sure=holds)


_OF_RATES = frozenset({Condition.DEAD_LETTERS, Condition.REQUEUED})
"""What can be wrong with a channel in which nothing waits."""
_REASONS = {
    Condition.NO_CONSUMERS: Reason.NO_CONSUMERS,
    Condition.STUCK: Reason.STUCK,
    Condition.GROWING: Reason.GROWING,
    Condition.PAUSED: Reason.PAUSED,
}


def _value(
    when: Condition, state: ChannelState, reasons: Sequence[Reason], history: History
) -> tuple[float | None, bool]:
    """What the rule's threshold is compared with, and whether it may be more; None if the rule does not hold anyway,
    or nothing is known."""
    if when is Condition.AGE:
        oldest = OldestAge.of(state.topic, state.channel, state.total, history)
        return oldest.seconds, oldest.is_least
    return _exact_value(when, state, reasons), False


def _exact_value(when: Condition, state: ChannelState, reasons: Sequence[Reason]) -> float | None:
    rates, depth = state.rates, state.total.depth
    match when:
        case Condition.DEPTH:
            return depth
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


@dataclass(slots=True, kw_only=True, eq=False)
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
    is_told: bool = False
    """Whether the webhook knows of its present state, or need not, or there is none."""
    silence: Silence | None = None
    """The one that covers it now; of several, the one that ends last."""

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

    def kept(self) -> str:
        """What is kept of it over a restart."""
        finding = self.finding
        return json.dumps(
            {
                **self.key._asdict(),
                "rule": finding.rule.document(),
                "text": finding.text,
                "value": finding.value,
                "since_ns": self.since_ns,
                "until_ns": self.until_ns,
                "is_told": self.is_told,
            }
        )

    @classmethod
    def recalled(cls, kept: str) -> Alert | None:
        """What was kept; None if another version of nsqadmin has written it."""
        try:
            said = json.loads(kept)
            rule = Rule.parse(said["rule"])
            return cls(
                key=AlertKey(rule.name, said["topic"], said["channel"], said["node"]),
                finding=RuleFinding(rule, said["text"], said["value"]),
                began_ns=0,
                since_ns=said["since_ns"],
                is_firing=True,
                until_ns=said["until_ns"],
                is_told=said["is_told"],
            )
        except (ValueError, LookupError, TypeError, RuleError):
            _log.warning("an alert that was kept cannot be read: %s", kept)
            return None

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

    def __init__(
        self, rules: RuleFile, marks: Marks, webhook: Webhook, *, clock: Clock, store: HistoryStore | None = None
    ) -> None:
        self.rules = rules
        self._store = store
        self._marks = marks
        self._webhook = webhook
        webhook.on_told = self._note_told
        self._clock = clock
        self._alerts: dict[AlertKey, Alert] = {}
        self._resolved: deque[Alert] = deque(maxlen=MAX_RESOLVED)
        self.silences = Silences(clock=clock, store=store)
        self._withheld: dict[AlertKey, Alert] = {}
        """Those of whose present state the webhook is to be told when a silence is over."""
        self.left_off_count = 0
        """Findings of the last look that are not followed, because there are too many."""

    @property
    def is_wanted(self) -> bool:
        """Whether the cluster is to be looked at for the rules alone."""
        return self.rules.is_given or self._webhook.has_url

    async def load(self) -> None:
        """Go on with the alerts and silences that were kept when nsqadmin ran last."""
        await self.silences.load()
        kept = await self._store.kept(KeptKind.ALERTS) if self._store is not None else []
        recalled = [alert for alert in map(Alert.recalled, kept) if alert is not None]
        for alert in recalled:
            if alert.until_ns is None:
                self._alerts[alert.key] = alert
            else:
                self._resolved.append(alert)
        self._withheld = {alert.key: alert for alert in recalled if not alert.is_told}
        self.apply_silences()

    def _keep(self) -> None:
        if self._store is not None:
            firing = [alert for alert in self._alerts.values() if alert.is_firing]
            over = {*self._resolved, *(alert for alert in self._withheld.values() if alert.until_ns is not None)}
            in_order = sorted(over, key=lambda alert: alert.until_ns or 0) + firing  # of a key the last comes last
            self._store.keep(KeptKind.ALERTS, [alert.kept() for alert in in_order])

    def gone_nodes(self) -> dict[str, int]:
        """The nodes that are said to be gone, and since when, by the wall clock."""
        alerts = self._alerts.values()
        return {each.key.node: each.since_ns for each in alerts if each.finding.rule.when is Condition.NODE_GONE}

    def take(self, found: Mapping[AlertKey, RuleFinding], look: Look) -> None:
        """Go on with what was found in a look."""
        now_ns, changed = self._clock.monotonic_ns(), []
        sure = {key: finding for key, finding in found.items() if finding.is_sure}
        self.left_off_count = max(len(sure) - MAX_ALERTS, 0)
        for key, finding in islice(sure.items(), MAX_ALERTS):
            alert = self._alerts.get(key)
            if alert is None:
                alert = Alert(key=key, finding=finding, began_ns=now_ns, since_ns=look.taken_ns)
                self._alerts[key] = alert
            alert.finding = finding
            if not alert.is_firing and now_ns - alert.began_ns >= finding.rule.for_ns:
                alert.is_firing = True
                changed.append(alert)
        changed += self._end(found, look)
        self._cover()
        self._tell(changed, look.taken_ns)
        self._release()

    def _end(self, found: Mapping[AlertKey, RuleFinding], look: Look) -> Iterator[Alert]:
        """Take away what holds no more; what was firing is resolved."""
        names = {rule.name for rule in self.rules.current.rules}
        lacking = look.incomplete_topics()
        silent = {absence.producer.node for absence in look.silent}
        for key in [key for key in self._alerts if key not in found]:
            alert = self._alerts[key]
            is_unknown = (
                look.survey.elapsed_s == 0  # the first look of this run: it has no rates
                or key.topic in lacking
                or (key.node in silent and alert.finding.rule.when is Condition.NODE_UNHEALTHY)
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
        self._tell_webhook(list(self._news(changed)))
        self._keep()

    def _news(self, changed: Iterable[Alert]) -> Iterator[Alert]:
        """Those of which the webhook believes otherwise: it may have missed what was before."""
        for alert in changed:
            missed = self._withheld.pop(alert.key, None)
            if alert.until_ns is None:
                is_news = missed is None
                if missed is not None:
                    missed.is_told = True  # that the last one ended need not be told any more
            else:
                is_news = alert.is_told or self._webhook.is_waiting(alert.key)
            if is_news:
                yield alert
            else:
                alert.is_told = True

    def _tell_webhook(self, news: Iterable[Alert]) -> None:
        """Send these soon, and those that are silenced when the silence is over."""
        told = []
        for alert in news:
            if alert.silence is None or self._webhook.is_waiting(alert.key):
                alert.is_told = not self._webhook.has_url
                told.append(alert)
            else:
                alert.is_told = False
                self._withheld[alert.key] = alert
        while len(self._withheld) > MAX_ALERTS:
            del self._withheld[next(iter(self._withheld))]
        self._webhook.tell([alert.document() for alert in told], firing_count=len(self._unsilenced))

    # Silences

    def apply_silences(self) -> None:
        """Go by the silences that there are now."""
        self._cover()
        self._release()

    def _cover(self) -> None:
        """Note which alerts are silenced."""
        silences = self.silences.current()[::-1]
        for alert in (*self._alerts.values(), *self._withheld.values(), *self._resolved):
            alert.silence = next((each for each in silences if each.covers(alert.key)), None)

    def _release(self) -> None:
        """Tell the webhook of alerts that are silenced no more."""
        released = [alert for alert in self._withheld.values() if alert.silence is None]
        if released:
            for alert in released:
                del self._withheld[alert.key]
            self._tell_webhook(released)
            self._keep()

    def _note_told(self, keys: Iterable[ToldKey]) -> None:
        told = set(keys)
        for alert in (*self._alerts.values(), *self._resolved):
            if alert.key in told:
                alert.is_told = True
        self._keep()

    @property
    def firing(self) -> list[Alert]:
        """The gravest first, and of those the oldest."""
        firing = [alert for alert in self._alerts.values() if alert.is_firing]
        return sorted(
            firing, key=lambda alert: (alert.severity is not AlertSeverity.CRITICAL, alert.since_ns, alert.key)
        )

    @property
    def _unsilenced(self) -> list[Alert]:
        return [alert for alert in self.firing if alert.silence is None]

    @property
    def silenced_count(self) -> int:
        return len(self.firing) - len(self._unsilenced)

    def summary(self) -> Document:
        """What the first page tells: the gravest that are not silenced, and how many there are."""
        unsilenced = self._unsilenced
        shown = [alert.document() for alert in unsilenced[:MAX_SHOWN]]
        return {"alerts": shown, "alert_count": len(unsilenced), "silenced_count": self.silenced_count}

    def document(self) -> Document:
        """What the page of alerts tells."""
        firing = self.firing
        pending = [alert for alert in self._alerts.values() if not alert.is_firing]
        covered = Counter(alert.silence.id for alert in firing if alert.silence is not None)
        return {
            "alerts": [alert.document() | {"silence": _id_of(alert.silence)} for alert in (*firing, *pending)],
            "resolved": [alert.document() for alert in reversed(self._resolved)],
            "left_off": self.left_off_count,
            "silences": [each.document() | {"alert_count": covered[each.id]} for each in self.silences.current()],
            "keeps_silences": self.silences.is_kept,
        }

    def counts(self) -> Counter[tuple[str, str]]:
        """How many are firing, by rule and severity; 0 for rules of which none is."""
        counts = Counter({(rule.name, rule.severity.value): 0 for rule in self.rules.current.rules})
        counts.update((alert.key.rule, alert.severity.value) for alert in self._alerts.values() if alert.is_firing)
        return counts


def _id_of(silence: Silence | None) -> str | None:
    return None if silence is None else silence.id


_MARKED_ANYWAY = frozenset({Condition.NODE_SILENT, Condition.NODE_GONE})
