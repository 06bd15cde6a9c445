"""What live views hold: documents for the pages, one for each view, made of a look at the cluster.

`GET /api/live?view=…` sends them as server-sent events, again and again; `GET /api/view?view=…` answers one.

    view=topics                      every topic in a line
    view=channels                    every channel in a line, with what needs attention (see `attention`)
    view=dead_letters                every channel that gives up on messages, and where these wait
    view=topic&topic=T               a topic as in /api/topics/T
    view=channel&topic=T&channel=C[&search=WORDS]
                                     a channel as in /api/topics/T/C, with some of its clients
    view=nodes                       the nsqds as in /api/nodes
    view=node&node=H:P               an nsqd as in /api/nodes/H:P, with clients
    view=counter                     message counts as in /api/counter
    view=pipelines                   as in /api/pipelines

Every document has `message` ("" or `WARNING: …`) and `time`, when it was gathered, in seconds since the Unix epoch. And
it names the nodes that are not there (see `absence`): "absent": [{"node", "hostname", "state" ("silent" or "gone"),
"since" (s), "depth", "client_count", "topic_count" (null: not known), "held_here" (on a topic's or a channel's page)}].
`is_incomplete` says that the sums lack a node which is a part of the cluster.

Beside the figures of the reference stand rates, in messages per second. What was not there at both of two looks has no
rate: it is null, or missing where names lead to rates.

A rate counts each message once. A **flow** counts it once for each channel, as depth does, so that both sides are of
one unit: {"in_rate", "finish_rate", "dead_letter_rate", "requeue_rate"}. What comes in, less what is finished or given
up, is what the backlog grows by.

    topics    {"topics": [{"topic_name", "depth", "backend_depth", "channel_depth", "in_flight_count", "deferred_count",
              "requeue_count", "timeout_count", "message_count", "client_count", "channel_count", "node_count",
              "paused", "e2e_p99", "rate", "paused_channels": [name], "idle_channels": [name], "idle_depth", and what
              a flow has, "is_incomplete"}], "node_count", "rates": {"total", "finished"}, "flow", "alerts" (the
              gravest that are firing; see `alert`), "alert_count", "silenced_count"}
              `depth` is what waits in the topic itself, `channel_depth` in all its channels together, `idle_depth` in
              those that have no consumer
    channels  {"channels": [{"topic_name", "channel_name", "depth", "backend_depth", "in_flight_count",
              "deferred_count", "requeue_count", "timeout_count", "message_count", "client_count", "node_count",
              "paused", "topic_paused", "reasons": [reason], "attention" (the larger, the more urgent), "e2e_p99", what
              a flow has, "oldest_s" (null: not known), "is_reckoned" (no nsqd has told it), "is_older" (it is at
              least that old), "is_incomplete"}]}
    dead_letters  {"dead_letters": [{"topic_name", "channel_name", "dead_letter_count", "dead_letter_rate",
              "max_attempts", "dead_letter_topic" ("": it has no policy now), "place" (a channel of that topic, "": it
              has none), "waiting" (there), "oldest_s", "is_reckoned", "is_older", "is_incomplete"}]}
    topic     "rates": {"topic", "channels": {name: rate}, "finished": {name: rate}, "nodes": {node: rate}}, "flow",
              "flows": {channel: flow}
    channel   "oldest_s", "is_reckoned", "is_older" as in `channels`,
              "rates": {"channel", "finished", "nodes": {node: rate}}, "clients_matching", "flow",
              "flows": {node: flow}, "paces": {"<node> <address>": {"finish_rate", "requeue_rate", "message_ns" (how
              long it holds a message), "timeout_count", "last_finish" (s)}}, of each client; null: not known yet
    nodes     each also has "node" (H:P), "state" ("present", or as above; those that are gone are listed as well),
              "depth" (with channels), "message_count", "client_count", "topic_count" (null: not known),
              "registered_count" and "tombstoned_count" (of topics that the nsqlookupds list for it), "rate",
              "health" (as nsqd says it), "is_healthy", "is_draining", "is_ready" (it takes messages); and
              "rates": {"total", "finished"}
    node      "rates": {"total", "finished", "topics": {name: rate}}, "memory" (as nsqd says it, or null), "flow",
              "paces", and the four on its health
    alerts    {"alerts": [alert], "resolved": [alert], "left_off", "silences": [silence], "keeps_silences"}; see
              `alert` and `silence`
    counter   "total_messages" (all that were published), "rates": {"total", "finished"}

A browser takes a document every few seconds, so it must stay small however large the cluster is:

    channel   `clients` are the first thousand of those that have every word of the search in their name, host, address,
              agent or node; `client_count` says how many there are, `clients_matching` how many of them match. The
              parts in `nodes` have none
    nodes     `topics` are null: there are counts
    channels  of more than twenty thousand channels some are left out; `message` says so
    topics    of more than twenty thousand topics some are left out, those that no nsqd has first; `message` says so
    counter   more than two thousand counters are told by channel, over all nodes (`*`); the sum stays the same
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from emberq.admin.absence import Absence
from emberq.admin.document import (
    Document,
    channel_document,
    counters_document,
    node_document,
    producer_document,
    topic_document,
)
from emberq.base.clock import NS_PER_MS
from emberq.cluster.node_stats import NodeFigures
from emberq.cluster.stats import (
    EVERY_NODE,
    ChannelFigures,
    ClientFilter,
    ClientPace,
    ClientWatch,
    Latency,
    TopicFigures,
)
from emberq.cluster.survey import IDLE, ChannelCounter, NodeStats, Rates, Survey, Total, counters_of, flow_of
from emberq.cluster.topology import ClusterNode
from emberq.cluster.upstream import warning_text

MAX_CLIENTS = 1_000
"""As many as a channel's document lists."""
MAX_TOPIC_LINES = 20_000
"""As many topics as are shown at once: some megabytes."""
MAX_COUNTERS = 2_000
"""As many as are told node by node."""

_RATE_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one time, with what happened since the look before."""

    survey: Survey
    names: tuple[str, ...] = ()
    """All topics that the nsqlookupds know, sorted; some may be on no node."""
    taken_ns: int = 0
    """By the wall clock."""
    warnings: tuple[str, ...] = ()
    absences: tuple[Absence, ...] = ()
    """Nodes that are silent or gone."""
    alerts: Document = field(default_factory=dict)
    """What is wrong by the rules, as the first page tells it (see `alert`)."""

    @property
    def silent(self) -> tuple[Absence, ...]:
        """Nodes that are a part of the cluster and did not answer."""
        return tuple(absence for absence in self.absences if not absence.is_gone)

    def incomplete_topics(self) -> set[str]:
        """Topics whose sums lack a silent node; one that has never answered may have any, and is not counted."""
        heard = (absence.figures for absence in self.silent if absence.figures is not None)
        return {topic for figures in heard for topic, channel in figures.keys if not channel}

    @property
    def head(self) -> Document:
        """The fields that every document has."""
        return self.head_of()

    def head_of(self, topic: str = "", channel: str = "") -> Document:
        """The same for a page of one topic or channel."""
        return {
            "message": warning_text(self.warnings),
            "time": self.taken_ns // NS_PER_MS / 1000,
            "absent": [absence.document(topic, channel) for absence in self.absences],
            "is_incomplete": any(not topic or absence.lacks(topic, channel) for absence in self.silent),
        }


def topics_view(look: Look) -> Document:
    """Every topic in a line, with those that no nsqd has."""
    totals = islice(look.survey.topic_totals(), MAX_TOPIC_LINES)
    lacking = look.incomplete_topics()
    lines = {
        topic: _topic_line(topic, total, channels, is_incomplete=topic in lacking) for topic, total, channels in totals
    }
    nowhere = (name for name in look.names if name not in look.survey.channels)
    lines |= {
        name: _topic_line(name, _NOWHERE, [], is_incomplete=name in lacking)
        for name in islice(nowhere, MAX_TOPIC_LINES - len(lines))
    }
    if len(lines) == MAX_TOPIC_LINES:
        look = replace(look, warnings=(*look.warnings, f"{MAX_TOPIC_LINES} topics are shown, and there may be more"))
    return {
        "topics": [lines[name] for name in sorted(lines)],
        "node_count": len(look.survey.producers),
        "rates": _totals(look.survey.total_rates()),
        "flow": _flow(look.survey.total_flow()),
        **look.alerts,
        **look.head,
    }


_NOWHERE = Total()
"""A topic that no nsqd has."""


def _topic_line(
    name: str, topic: Total, named_channels: Sequence[tuple[str, Total]], *, is_incomplete: bool = False
) -> Document:
    channels = [channel for _, channel in named_channels]
    idle = {name: channel.depth for name, channel in named_channels if channel.client_count == 0}
    return {
        "topic_name": name,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "channel_depth": sum(channel.depth for channel in channels),
        "in_flight_count": sum(channel.in_flight_count for channel in channels),
        "deferred_count": sum(channel.deferred_count for channel in channels),
        "requeue_count": sum(channel.requeue_count for channel in channels),
        "timeout_count": sum(channel.timeout_count for channel in channels),
        "message_count": topic.message_count,
        "client_count": sum(channel.client_count for channel in channels),
        "channel_count": len(channels),
        "node_count": topic.node_count,
        "paused": topic.paused,
        "is_incomplete": is_incomplete,
        "paused_channels": [name for name, channel in named_channels if channel.paused],
        "idle_channels": list(idle),
        "idle_depth": sum(idle.values()),
        "e2e_p99": slowest_ns(topic.latency),
        "rate": _came(topic.rates),
        **flow_document(flow_of(topic.rates, (channel.rates for channel in channels))),
    }


def slowest_ns(latency: Latency) -> int | None:
    """The highest percentile that is tracked, on the node where it is highest; None if none is, or nothing was
    measured."""
    slowest = latency.percentiles[0].max if latency.percentiles and latency.message_count else math.nan
    return round(slowest) if math.isfinite(slowest) else None  # a daemon may claim anything


def topic_view(topic: TopicFigures, look: Look) -> Document:
    """A topic with the rates of its parts."""
    name, survey = topic.topic_name, look.survey
    of_channels = {channel.channel_name: _rates(survey, name, channel.channel_name) for channel in topic.channels}
    return {
        **topic_document(topic, now_ns=look.taken_ns),
        "rates": {
            "topic": _came(_rates(survey, name)),
            "channels": {channel: _came(each) for channel, each in of_channels.items()},
            "finished": {channel: _left(each) for channel, each in of_channels.items()},
            "nodes": _came_by_node(survey, name),
        },
        "flow": _flow(survey.topic_flow(name)),
        "flows": {channel: _flow(each) for channel, each in of_channels.items()},
        **look.head_of(name),
    }


def paces_document(watch: ClientWatch) -> Document:
    """How each client gets on, by its node and address."""
    return {f"{node} {address}": _pace(pace) for (node, address), pace in watch.paces().items()}


def _pace(pace: ClientPace) -> Document:
    finished_ns = pace.last_finish_ns
    return {
        "finish_rate": None if pace.finish_rate is None else round(pace.finish_rate, _RATE_DIGITS),
        "requeue_rate": None if pace.requeue_rate is None else round(pace.requeue_rate, _RATE_DIGITS),
        "message_ns": pace.message_ns,
        "timeout_count": pace.timeout_count,
        "last_finish": None if finished_ns is None else finished_ns // NS_PER_MS / 1000,
    }


def channel_view(channel: ChannelFigures, clients: ClientFilter, watch: ClientWatch, look: Look) -> Document:
    """A channel with the rates of its parts, and with those of its clients that are to be shown."""
    topic, name, survey = channel.topic_name, channel.channel_name, look.survey
    return {
        **channel_document(channel._replace(clients=tuple(clients.kept)), now_ns=look.taken_ns),
        "clients_matching": clients.match_count,
        "paces": paces_document(watch),
        "rates": {
            "channel": _came(_rates(survey, topic, name)),
            "finished": _left(_rates(survey, topic, name)),
            "nodes": _came_by_node(survey, topic, name),
        },
        "flow": _flow(_rates(survey, topic, name)),
        "flows": {node: _flow(rates) for node, rates in survey.rates_by_node(topic, name).items()},
        **look.head_of(topic, name),
    }


def nodes_view(producers: Iterable[ClusterNode], look: Look) -> Document:
    """The nsqds, and what each has to do."""
    return {
        "nodes": [
            *(_node_line(producer, look) for producer in producers),
            *(_node_line(absence.producer, look) | absence.document() for absence in look.absences if absence.is_gone),
        ],
        "rates": _totals(look.survey.total_rates()),
        **look.head,
    }


def _health(figures: NodeFigures | None) -> Document:
    """Whether a node is well, and takes messages; null where it did not answer."""
    if figures is None:
        return {"health": None, "is_healthy": None, "is_draining": None, "is_ready": None}
    return {
        "health": figures.health,
        "is_healthy": figures.is_healthy,
        "is_draining": figures.is_draining,
        "is_ready": figures.is_healthy and not figures.is_draining,
    }


def _node_line(producer: ClusterNode, look: Look) -> Document:
    """A node that did not answer has no work to show, which is not the same as none to do."""
    work = look.survey.work.get(producer.node)
    known = None if work is None else work._asdict()
    figures = ("depth", "message_count", "client_count", "topic_count")
    return {
        **producer_document(replace(producer, topics=())),
        "node": producer.node,
        "state": "silent" if work is None else "present",
        **_health(look.survey.nodes.get(producer.node)),
        **{name: None if known is None else known[name] for name in figures},
        "registered_count": len(producer.topics),
        "tombstoned_count": sum(topic.tombstoned for topic in producer.topics),
        "rate": None if work is None else _came(work.rates),
    }


def node_view(node: NodeStats, watch: ClientWatch, look: Look) -> Document:
    """An nsqd with the rates of its topics."""
    figures = look.survey.nodes.get(node.node)
    rates = look.survey.rates_by_topic(node.node)
    return {
        **node_document(node, now_ns=look.taken_ns),
        "memory": None if figures is None else figures.memory,
        **_health(figures),
        "paces": paces_document(watch),
        "rates": {
            **_totals(look.survey.work.get(node.node, IDLE).rates),
            "topics": {topic.topic_name: _came(rates.get(topic.topic_name)) for topic in node.topics},
        },
        "flow": _flow(look.survey.work.get(node.node, IDLE).flow),
        **look.head,
        "is_incomplete": False,  # whichever nodes are absent, this one is not
    }


def counter_view(look: Look) -> Document:
    """The message count of every channel on every node, or in a large cluster of every channel."""
    survey = look.survey
    count = sum(total.node_count for (_, channel), total in survey.totals.items() if channel)
    counters = counters_of(survey.nodes.values()) if count <= MAX_COUNTERS else _counters_by_channel(survey)
    return {
        "stats": counters_document(counters),
        "total_messages": sum(total.message_count for (_, channel), total in survey.totals.items() if not channel),
        "rates": _totals(survey.total_rates()),
        **look.head,
    }


def _counters_by_channel(survey: Survey) -> Iterator[ChannelCounter]:
    for (topic, channel), total in survey.totals.items():
        if channel:
            yield ChannelCounter(
                node=EVERY_NODE, topic_name=topic, channel_name=channel, message_count=total.message_count
            )


def _rates(survey: Survey, topic: str, channel: str = "") -> Rates | None:
    total = survey.totals.get((topic, channel))
    return None if total is None else total.rates


def _came_by_node(survey: Survey, topic: str, channel: str = "") -> Document:
    return {node: _came(rates) for node, rates in survey.rates_by_node(topic, channel).items()}


def _totals(rates: Rates | None) -> Document:
    return {"total": _came(rates), "finished": _left(rates)}


def _came(rates: Rates | None) -> float | None:
    return None if rates is None else round(rates.came, _RATE_DIGITS)


def flow_document(flow: Rates | None) -> Document:
    """What a flow has; null where it is not known."""
    return _flow(flow) or _UNKNOWN_FLOW


def _flow(flow: Rates | None) -> Document | None:
    if flow is None:
        return None
    rates = (flow.came, flow.finished, flow.dead_lettered, flow.requeued)
    return {name: round(rate, _RATE_DIGITS) for name, rate in zip(_FLOW, rates, strict=True)}


_FLOW = ("in_rate", "finish_rate", "dead_letter_rate", "requeue_rate")
_UNKNOWN_FLOW: Document = dict.fromkeys(_FLOW)


def _left(rates: Rates | None) -> float | None:
    return None if rates is None else round(rates.left, _RATE_DIGITS)
