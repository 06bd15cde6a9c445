"""Which channels need an operator, and why: all channels of the cluster in one list, the worst first; dead letters.

A queue that grows is one of many, and a list by topic hides it. So every channel is told in a line, with the reasons
why it may need a person, in this order:

    dead_letters    messages are given up right now
    stuck           messages wait, consumers are there, and none is finished
    no_consumers    messages wait, and no consumer is there to take them
    growing         more comes in than is finished or given up
    requeued        deliveries fail: consumers give messages back, or let them time out
    paused          an operator has stopped it, or its topic

What is paused is neither stuck nor growing: it does what it was told.

What an operator is told of, and after how long, is said by rules (`rule`), which judge by the same states (`alert`).

Rates are means of the last half minute, where there is a history, because a single look sees bursts.

**The age of the oldest message** is what the nsqds tell: how long ago the message was published that is next in line;
one that was given back may be older. NSQ's own nsqd does not tell it, and emberq's does not of a disk queue that an
earlier run has left. Then it is reckoned: the history says how much came in, so it also says when the last `depth`
messages began to come. If more waits than came in since the history began, the age is at least that long.

**Dead letters** of the whole cluster are listed by the channel that has given them up, and by the place where they
wait: a channel of the dead-letter topic, or the topic itself while it has none. Channels that share a topic share its
places, and what waits there is told with each of them.

**The search** looks for words in the names of topics, channels and nodes of a look, and in what consumers say of
themselves, which the nsqds are asked for.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from emberq.admin.document import Document, client_document
from emberq.admin.history import History
from emberq.admin.view import Look, flow_document, slowest_ns
from emberq.cluster.node_stats import Key
from emberq.cluster.stats import DeadLetterPolicy
from emberq.cluster.survey import FoundClient, Rates, Survey, Total

MAX_CHANNEL_LINES = 20_000
"""As many channels as are shown at once: some megabytes."""
MAX_FOUND = 50
"""As many of each kind as a search shows; more is no answer but another list."""

_LEAST_NET = 0.05
_STEADY_SHARE = 0.01
"""Less than this, as a share of what comes in, is no direction."""


class Reason(enum.StrEnum):
    """Why a channel needs attention, the gravest first."""

    DEAD_LETTERS = "dead_letters"
    STUCK = "stuck"
    NO_CONSUMERS = "no_consumers"
    GROWING = "growing"
    REQUEUED = "requeued"
    PAUSED = "paused"


_GRAVITY = {reason: len(Reason) - place for place, reason in enumerate(Reason)}


def reasons_of(channel: Total, rates: Rates | None, *, is_paused: bool) -> list[Reason]:
    """Why this channel needs attention; `is_paused` if it is, or its topic."""
    waits, flows = channel.depth > 0, rates is not None
    has_consumers = channel.client_count > 0
    finished = rates.finished if rates is not None else 0.0
    dead, requeued = (rates.dead_lettered, rates.requeued) if rates is not None else (0.0, 0.0)
    applies = {
        Reason.DEAD_LETTERS: dead > 0,
        Reason.STUCK: waits and flows and has_consumers and not is_paused and finished == 0 and dead == 0,
        Reason.NO_CONSUMERS: waits and not has_consumers,
        Reason.GROWING: waits and not is_paused and rates is not None and _grows(rates),
        Reason.REQUEUED: requeued > 0,
        Reason.PAUSED: is_paused,
    }
    return [reason for reason, does_apply in applies.items() if does_apply]


def _grows(rates: Rates) -> bool:
    return rates.came - rates.left > max(_LEAST_NET, _STEADY_SHARE * rates.came)


class ChannelState(NamedTuple):
    """A channel over all nodes, with all that is judged by."""

    topic: str
    channel: str
    total: Total
    rates: Rates | None
    """Means of the last half minute, where there is a history."""
    topic_paused: bool

    @property
    def reasons(self) -> list[Reason]:
        """Why it needs attention."""
        return reasons_of(self.total, self.rates, is_paused=self.topic_paused or self.total.paused)


def channel_states(look: Look, history: History) -> Iterator[ChannelState]:
    """Every channel, by topic and name: for the page that lists them, and for the rules (see `alert`)."""
    for topic, of_topic, channels in look.survey.topic_totals():
        for name, channel in channels:
            rates = history.recent_rates_of(topic, name) or channel.rates
            yield ChannelState(topic, name, channel, rates, of_topic.paused)


class OldestAge(NamedTuple):
    """How long the oldest message of a queue has waited."""

    seconds: float | None = None
    """None if it is not known, or none waits."""
    is_reckoned: bool = False
    """Whether no nsqd has told it."""
    is_least: bool = False
    """Whether it may be longer."""

    @classmethod
    def of(cls, topic: str, channel: str, total: Total, history: History) -> OldestAge:
        """Of a channel, or of what waits in a topic itself."""
        if total.oldest_ms is not None:
            return cls(total.oldest_ms / 1000)
        seconds, is_least = history.waiting_s(topic, channel, total.depth)
        return cls(seconds, is_reckoned=seconds is not None, is_least=is_least)

    def document(self) -> Document:
        return {"oldest_s": self.seconds, "is_reckoned": self.is_reckoned, "is_older": self.is_least}


def channels_view(look: Look, history: History) -> Document:
    """Every channel in a line."""
    lines = list(islice(_lines(look, history), MAX_CHANNEL_LINES))
    if len(lines) == MAX_CHANNEL_LINES:
        warning = f"{MAX_CHANNEL_LINES} channels are shown, and there may be more"
        look = replace(look, warnings=(*look.warnings, warning))
    return {"channels": lines, **look.head}


def _lines(look: Look, history: History) -> Iterator[Document]:
    lacking = look.incomplete_topics()
    for state in channel_states(look, history):
        yield {
            "topic_name": state.topic,
            "channel_name": state.channel,
            **_line(state),
            **OldestAge.of(state.topic, state.channel, state.total, history).document(),
            "is_incomplete": state.topic in lacking,
        }


def _line(state: ChannelState) -> Document:
    channel, reasons = state.total, state.reasons
    return {
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "message_count": channel.message_count,
        "client_count": channel.client_count,
        "node_count": channel.node_count,
        "paused": channel.paused,
        "topic_paused": state.topic_paused,
        "reasons": reasons,
        "attention": sum(1 << _GRAVITY[reason] for reason in reasons),
        "e2e_p99": slowest_ns(channel.latency),
        **flow_document(state.rates),
    }


# Dead letters


def dead_letters_view(look: Look, history: History) -> Document:
    """Every channel that gives up on messages or has done so, and where these wait, a line for each place."""
    survey, lacking = look.survey, look.incomplete_topics()
    policies, counts = _policies(survey), _dead_letter_counts(survey)
    lines: list[Document] = []
    for key in sorted(policies.keys() | counts.keys()):
        topic, channel = key
        agreed: list[DeadLetterPolicy | None] = [*sorted(policies.get(key, ()))]
        rates = history.recent_rates_of(topic, channel) or survey.totals[key].rates
        source = {
            "topic_name": topic,
            "channel_name": channel,
            "dead_letter_count": counts.get(key, 0),
            "dead_letter_rate": flow_document(rates)["dead_letter_rate"],
            "is_incomplete": topic in lacking,
        }
        for policy in agreed or [None]:
            where = "" if policy is None else policy.dead_letter_topic
            kept = {"max_attempts": None if policy is None else policy.max_attempts, "dead_letter_topic": where}
            lines += [source | kept | place for place in _places(where, look, history)]
    return {"dead_letters": lines[:MAX_CHANNEL_LINES], **look.head}


def _policies(survey: Survey) -> dict[Key, set[DeadLetterPolicy]]:
    """Of each channel that has one; if its nodes do not agree there are several."""
    policies: dict[Key, set[DeadLetterPolicy]] = {}
    for figures in survey.nodes.values():
        for key, policy in figures.policies.items():
            policies.setdefault(key, set()).add(policy)
    return policies


def _dead_letter_counts(survey: Survey) -> Counter[Key]:
    """What each channel has given up, where that is anything."""
    counts: Counter[Key] = Counter()
    for figures in survey.nodes.values():
        if any(figures.dead_letters):
            counts.update({key: count for key, count in zip(figures.keys, figures.dead_letters, strict=True) if count})
    return counts


def _places(topic: str, look: Look, history: History) -> list[Document]:
    """Where the messages of a dead-letter topic wait; a topic that no nsqd has yet is a place without messages."""
    survey = look.survey
    channels = survey.channels.get(topic) or [""]
    totals = [(channel, survey.totals.get((topic, channel), Total())) for channel in channels]
    return [
        {"place": channel, "waiting": total.depth, **OldestAge.of(topic, channel, total, history).document()}
        for channel, total in totals
    ]


# The search


class Found(NamedTuple):
    """What a search has found of one kind."""

    entries: list[Document]
    """The first of them."""
    total: int
    """How many there are."""

    @classmethod
    def of(cls, entries: Iterable[Document]) -> Found:
        """The first entries, and how many there are."""
        listed = list(entries)
        return cls(listed[:MAX_FOUND], len(listed))


def search_view(look: Look, search: str) -> Document:
    """The topics, channels and nodes that have every word of the search in their name."""
    words = words_of(search)
    found = {
        "topics": Found.of(_topics(look, words)),
        "channels": Found.of(_channels(look, words)),
        "nodes": Found.of(_nodes(look, words)),
    }
    return {
        **{kind: each.entries for kind, each in found.items()},
        "counts": {kind: each.total for kind, each in found.items()},
        **look.head,
    }


def consumers_view(found: Sequence[FoundClient], count: int, *, now_ns: int) -> dict[str, Any]:
    """The consumers that a search has found."""
    return {
        "consumers": [
            {"topic_name": each.topic, "channel_name": each.channel, **client_document(each.client, now_ns=now_ns)}
            for each in found
        ],
        "count": count,
    }


def words_of(search: str) -> list[str]:
    """What has to be found, each somewhere."""
    return search.lower().split()


def _topics(look: Look, words: list[str]) -> Iterator[Document]:
    for topic, total, channels in look.survey.topic_totals():
        if _has(topic, words):
            depth = total.depth + sum(channel.depth for _, channel in channels)
            yield {"topic_name": topic, "depth": depth, "channel_count": len(channels), "paused": total.paused}
    for name in look.names:
        if name not in look.survey.channels and _has(name, words):
            yield {"topic_name": name, "depth": 0, "channel_count": 0, "paused": False}


def _channels(look: Look, words: list[str]) -> Iterator[Document]:
    for (topic, name), total in look.survey.totals.items():
        # A word of the channel's own name must be among them: else a topic would be found again with each channel.
        if name and _has(f"{topic} / {name}", words) and any(word in name.lower() for word in words):
            figures = {"depth": total.depth, "client_count": total.client_count, "paused": total.paused}
            yield {"topic_name": topic, "channel_name": name, **figures}


def _nodes(look: Look, words: list[str]) -> Iterator[Document]:
    gone = (absence.producer for absence in look.absences if absence.is_gone)
    for producer in (*look.survey.producers, *gone):
        if _has(f"{producer.hostname} {producer.node} {producer.version}", words):
            work = look.survey.work.get(producer.node)
            yield {
                "node": producer.node,
                "hostname": producer.hostname,
                "version": producer.version,
                "depth": None if work is None else work.depth,
                "client_count": None if work is None else work.client_count,
            }


def _has(name: str, words: list[str]) -> bool:
    text = name.lower()
    return bool(words) and all(word in text for word in words)
