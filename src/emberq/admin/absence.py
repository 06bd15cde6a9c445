"""Nodes that were there and are not, so that they do not vanish from the pages together with their figures.

A look at the cluster holds the nsqds that answered. Each look is compared with those before:

    answers                         present
    is listed, and does not answer  silent: it hangs, or cannot be reached; sums lack it for the time being
    is not listed any more          gone: stopped or killed; nsqlookupd has forgotten it

What an absent node said last is kept: what it held, and since when it has not been heard of. A node that answers again
is present. One that is gone stays on the pages until an operator dismisses it, because no program can tell an
accident from the end of its service. Whatever begins or ends is a mark in the charts.

A node that was drained is gone because an operator wanted it, and is no accident. One that is empty stops before any
look can see that it is draining; so a drain that is asked for here is remembered (`let_go`).

Without nsqlookupds, the nsqds are those that the user named, and one that does not answer is not listed either.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.cluster.node_stats import NodeFigures
from emberq.cluster.survey import Survey
from emberq.cluster.topology import ClusterNode

MAX_ABSENT = 50
"""As many as are remembered, the newest: each keeps all figures of a node, and any client can register nodes."""
MAX_MARKS = 200
"""As many as charts can show and people can read."""
LEAVING_NS = 60 * NS_PER_SECOND
"""A node that is still heard of so long after it was told to go is not empty: then looks see that it is draining."""


class Presence(enum.StrEnum):
    """What became of a node."""

    SILENT = "silent"
    GONE = "gone"
    BACK = "back"


class Mark(NamedTuple):
    """Something that happened to a node."""

    time_ns: int
    """By the wall clock."""
    node: str
    what: Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A node that is silent or gone."""

    producer: ClusterNode
    since_ns: int
    """When it was last heard of, by the wall clock."""
    presence: Presence
    figures: NodeFigures | None = None
    """What it said then; None if it has never answered."""
    was_draining: bool = False
    """Whether it was on its way out when it was last heard of: then it is no accident that it is gone."""

    @property
    def is_gone(self) -> bool:
        """Whether the cluster does not list it any more."""
        return self.presence is Presence.GONE

    def held(self, topic: str = "", channel: str = "") -> int | None:
        """Messages that waited in it: in all, in a topic with its channels, or in a channel; None if it had none such.

        Of a node that has never answered it is not known either.
        """
        if self.figures is None:
            return None
        depths = zip(self.figures.keys, self.figures.columns["depth"], strict=True)
        found = [depth for key, depth in depths if topic in ("", key[0]) and channel in ("", key[1])]
        return sum(found) if found or not topic else None

    def lacks(self, topic: str, channel: str = "") -> bool:
        """Whether the sums of a topic or a channel lack this node; it may have had any if it has never answered."""
        return self.figures is None or self.figures.position((topic, channel)) is not None

    def document(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """The absence as pages are told of it; `held_here` is what it held of the topic or channel of the page."""
        figures = self.figures
        return {
            "node": self.producer.node,
            "hostname": self.producer.hostname,
            "state": self.presence,
            "since": self.since_ns // NS_PER_MS / 1000,
            "depth": self.held(),
            "client_count": None if figures is None else sum(figures.columns["client_count"]),
            "topic_count": None if figures is None else figures.topic_count,
            **({"was_draining": True} if self.was_draining else {}),
            **({"held_here": self.held(topic, channel)} if topic else {}),
        }


class Absences:
    """All absent nodes. Owned by the gatherer."""

    def __init__(self, tell: Callable[[Mark], None] | None = None) -> None:
        """`tell` hears of every mark."""
        self._tell = tell
        self._absent: dict[str, Absence] = {}
        """By node, the one that is absent for longest first."""
        self._leaving: dict[str, int] = {}
        """Nodes that were told to go, and when."""
        self._heard_ns = 0
        self._before: Survey | None = None
        self.marks: deque[Mark] = deque(maxlen=MAX_MARKS)

    @property
    def now(self) -> tuple[Absence, ...]:
        """The nodes that are absent now."""
        return tuple(self._absent.values())

    def update(self, survey: Survey, taken_ns: int) -> tuple[Absence, ...]:
        """Compare the newest look with those before; `taken_ns` is the wall clock's."""
        for node in [node for node in self._absent if node in survey.nodes]:
            del self._absent[node]
            self._mark(Mark(taken_ns, node, Presence.BACK))
        listed = {producer.node: producer for producer in survey.producers}
        before = self._before.nodes if self._before is not None else {}
        for node, figures in before.items():
            if node not in survey.nodes:
                self._add(figures.producer, self._heard_ns, figures)
        for node, producer in listed.items():
            if node not in survey.nodes and node not in self._absent:
                self._add(producer, taken_ns, None)
        for node, absence in self._absent.items():
            presence = Presence.SILENT if node in listed else Presence.GONE
            if presence is not absence.presence:
                is_new = absence.presence is Presence.BACK
                self._absent[node] = replace(absence, presence=presence)
                self._mark(Mark(absence.since_ns if is_new else taken_ns, node, presence))
        self._before, self._heard_ns = survey, taken_ns
        return self.now

    def _add(self, producer: ClusterNode, since_ns: int, figures: NodeFigures | None) -> None:
        """Whether it is silent or gone is found out for all alike, by the caller; until then it counts as present."""
        if len(self._absent) >= MAX_ABSENT:
            if figures is None:
                return  # made up, perhaps
            unheard = (node for node, absence in self._absent.items() if absence.figures is None)
            del self._absent[next(unheard, next(iter(self._absent)))]
        told_ns = self._leaving.pop(producer.node, None)
        self._absent[producer.node] = Absence(
            producer=producer,
            since_ns=since_ns,
            presence=Presence.BACK,
            figures=figures,
            was_draining=(figures is not None and figures.is_draining)
            or (told_ns is not None and since_ns <= told_ns + LEAVING_NS),
        )

    def let_go(self, node: str, now_ns: int) -> None:
        """An operator tells this node to go, now by the wall clock."""
        fresh = {each: told_ns for each, told_ns in self._leaving.items() if now_ns <= told_ns + LEAVING_NS}
        self._leaving = fresh | {node: now_ns}

    def hold_back(self, node: str) -> None:
        """The node is to stay after all."""
        self._leaving.pop(node, None)

    def recall(self, gone: Mapping[str, int]) -> None:
        """Go on with nodes that were gone when nsqadmin ran last: what they held is not known any more."""
        for node, since_ns in gone.items():
            host, _, port = node.rpartition(":")
            producer = ClusterNode(
                broadcast_address=host.strip("[]"), hostname="", tcp_port=0, http_port=int(port), version=""
            )
            self._absent[node] = Absence(producer=producer, since_ns=since_ns, presence=Presence.GONE)

    def dismiss(self, node: str) -> bool:
        """Forget a node that is gone; whether there was one. A silent one is still a part of the cluster."""
        absence = self._absent.get(node)
        if absence is None or not absence.is_gone:
            return False
        del self._absent[node]
        return True

    def _mark(self, mark: Mark) -> None:
        self.marks.append(mark)
        if self._tell is not None:
            self._tell(mark)
