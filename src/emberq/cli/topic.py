"""`emberq topic`, `emberq channel` and `emberq node`: look at a cluster, and change it.

    topic    list, create, delete, pause, unpause, empty, stats
    channel  list, create, delete, pause, unpause, empty, stats
    node     list, stats, drain, tombstone

They do what nsqadmin's pages do, by the same code (`emberq.cluster`), on every nsqd that has the topic. What can be
done is done: an nsqd that refuses is told of, and the exit status is then 1. What destroys messages asks on a terminal,
and needs --yes elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from emberq.base.clock import SystemClock
from emberq.cli.argument import add_cluster_flags, addresses, channel_name, topic_name, upstreams
from emberq.cli.main import Subcommand, run_subcommand
from emberq.cli.table import Cell, figure, name, table
from emberq.cli.terminal import (
    DONE,
    FAILED,
    CommandError,
    CommandParser,
    Terminal,
    command_parser,
    counted,
    run_command,
)

if TYPE_CHECKING:
    from emberq.cluster.action import DrainState
    from emberq.cluster.stats import ChannelFigures, TopicFigures
    from emberq.cluster.topology import ClusterNode
    from emberq.cluster.upstream import Upstreams


class ClusterView:
    """The cluster that the flags name, for one command."""

    def __init__(self, arguments: argparse.Namespace, terminal: Terminal) -> None:
        from emberq.cluster.action import Actions
        from emberq.cluster.survey import ClusterReader
        from emberq.cluster.topology import Topology

        self.arguments = arguments
        self.terminal = terminal
        self.ask: Upstreams = upstreams(arguments)
        self.topology = Topology(self.ask, addresses(arguments))
        self.reader = ClusterReader(self.ask, self.topology)
        self.actions = Actions(self.ask, self.topology)

    def note(self, warnings: Iterable[str]) -> int:
        """Tell what went wrong; the exit status."""
        status = DONE
        for warning in warnings:
            self.terminal.note(warning)
            status = FAILED
        return status

    async def nsqds(self) -> Sequence[ClusterNode]:
        """Those that have the topic; CommandError if none has it, or none has the channel."""
        topic = self.arguments.topic
        found = await self.topology.topic_producers(topic)
        self.note(found.warnings)
        if not found.value:
            raise CommandError(f"no nsqd has a topic {topic}", hint="`emberq topic list` shows all of them.")
        return found.value

    async def figures(self) -> TopicFigures:
        """The topic over all nsqds; CommandError if none has it, or none has the channel."""
        await self.nsqds()
        found = await self.reader.topic(self.arguments.topic)
        channel = getattr(self.arguments, "channel", "")
        if channel and all(each.channel_name != channel for each in found.value.channels):
            hint = f"`emberq channel list {self.arguments.topic}` shows all of them."
            raise CommandError(f"the topic {self.arguments.topic} has no channel {channel}", hint=hint)
        return found.value


Work: TypeAlias = Callable[[ClusterView], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCommand:
    """One of the commands: called with the words behind it, it returns the exit status."""

    words: str
    summary: str
    work: Work
    takes: tuple[str, ...] = ()
    """Its arguments: topic, channel, node; one that may be left out ends in `?`."""
    is_destructive: bool = False
    switches: tuple[tuple[str, str], ...] = ()
    """Further flags without a value, and what they mean."""

    def make_parser(self) -> CommandParser:
        """Its flags and arguments."""
        parser = command_parser(f"emberq {self.words}", f"{self.summary[:1].upper()}{self.summary[1:]}.")
        kinds: dict[str, Callable[[str], str]] = {"topic": topic_name, "channel": channel_name, "node": str}
        for taken in self.takes:
            argument = taken.removesuffix("?")
            nargs, meaning = ("?" if taken.endswith("?") else None), _MEANINGS[argument]
            parser.add_argument(argument, nargs=nargs, type=kinds[argument], metavar=argument.upper(), help=meaning)
        for switch, meaning in self.switches:
            parser.add_argument(switch, action="store_true", help=meaning)
        if self.is_destructive:
            parser.add_argument("--yes", action="store_true", help="do it without asking")
        add_cluster_flags(parser)
        return parser

    def __call__(self, argv: Sequence[str]) -> int:
        return run_command(self.make_parser(), argv, self._run)

    async def _run(self, arguments: argparse.Namespace, terminal: Terminal) -> int:
        return await self.work(ClusterView(arguments, terminal))


_MEANINGS = {
    "topic": "the name of a topic",
    "channel": "the name of a channel",
    "node": "an nsqd, as `emberq node list` calls it",
}


# Looking.


async def _list_topics(view: ClusterView) -> int:
    found = await view.topology.topics()
    for topic in found.value:
        view.terminal.report({"topic": topic}, topic)
    return view.note(found.warnings)


async def _list_channels(view: ClusterView) -> int:
    for channel in (await view.figures()).channels:
        view.terminal.report({"topic": view.arguments.topic, "channel": channel.channel_name}, channel.channel_name)
    return DONE


async def _list_nodes(view: ClusterView) -> int:
    found = await view.topology.producers()
    documents = [
        {
            "node": node.node,
            "tcp_address": node.tcp_address,
            "hostname": node.hostname,
            "version": node.version,
            "topics": [each.topic for each in node.topics],
        }
        for node in found.value
    ]
    if view.terminal.is_rich:
        rows = [
            (each.node, each.tcp_address, str(len(each.topics)), each.version, each.hostname) for each in found.value
        ]
        columns = [name("NODE"), name("TCP"), figure("TOPICS"), figure("VERSION"), figure("HOST")]
        view.terminal.console.print(table(columns, rows, width=view.terminal.console.width))
    else:
        for document in documents:
            view.terminal.report(document, str(document["node"]))
    return view.note(found.warnings)


FIGURES = {
    "DEPTH": "depth",
    "IN-FLIGHT": "in_flight_count",
    "DEFERRED": "deferred_count",
    "MESSAGES": "message_count",
    "CLIENTS": "client_count",
    "REQUEUED": "requeue_count",
    "TIMED-OUT": "timeout_count",
    "ON-DISK": "backend_depth",
}
"""Columns, and the members of topics and channels that they show. A topic has not all of them."""


def _document(row: Any, *, topic: str, channel: str | None) -> dict[str, Any]:
    counts = {member: getattr(row, member) for member in FIGURES.values() if hasattr(row, member)}
    return {"topic": topic, "channel": channel, "paused": row.paused, **counts}


def _show(documents: Sequence[dict[str, Any]], terminal: Terminal) -> None:
    """Figures as a table, for a pipe as lines of JSON."""
    if not terminal.is_rich:
        for document in documents:
            terminal.write_json(document)
        return
    columns = [name("TOPIC"), name("CHANNEL"), *map(figure, FIGURES), figure("PAUSED")]
    rows: list[tuple[Cell, ...]] = [
        (
            document["topic"],
            document["channel"] or "–",
            *(f"{document[member]:,}" if member in document else "" for member in FIGURES.values()),
            "paused" if document["paused"] else "",
        )
        for document in documents
    ]
    terminal.console.print(table(columns, rows, width=terminal.console.width))


def _documents(topics: Iterable[TopicFigures]) -> list[dict[str, Any]]:
    found = []
    for topic in topics:
        found.append(_document(topic, topic=topic.topic_name, channel=None))
        found += [_document(each, topic=topic.topic_name, channel=each.channel_name) for each in topic.channels]
    return found


async def _topic_stats(view: ClusterView) -> int:
    if view.arguments.topic:
        _show(_documents([await view.figures()]), view.terminal)
        return DONE
    found = await view.reader.survey(SystemClock())
    documents = []
    for topic, total, channels in found.value.topic_totals():
        documents.append(_document(total, topic=topic, channel=None))
        documents += [_document(each, topic=topic, channel=channel) for channel, each in channels]
    _show(documents, view.terminal)
    return view.note(found.warnings)


async def _channel_stats(view: ClusterView) -> int:
    await view.figures()
    found = await view.reader.channel(view.arguments.topic, view.arguments.channel)
    document = _document(found.value, topic=view.arguments.topic, channel=view.arguments.channel)
    clients = [_client(found.value, number) for number in range(len(found.value.clients))]
    if view.terminal.is_rich:
        _show([document], view.terminal)
        rows = [tuple(str(value) for value in client.values()) for client in clients]
        columns = [
            name("CLIENT"),
            name("ADDRESS"),
            name("NSQD"),
            figure("READY"),
            figure("IN-FLIGHT"),
            figure("FINISHED"),
        ]
        if rows:
            view.terminal.console.print(table(columns, rows, width=view.terminal.console.width))
    else:
        view.terminal.write_json({**document, "clients": clients})
    return view.note(found.warnings)


def _client(channel: ChannelFigures, number: int) -> dict[str, Any]:
    client = channel.clients[number]
    return {
        "client": client.client_id,
        "address": client.remote_address,
        "nsqd": client.node,
        "ready": client.ready_count,
        "in_flight": client.in_flight_count,
        "finished": client.finish_count,
    }


async def _node_stats(view: ClusterView) -> int:
    found = await view.reader.node(view.arguments.node)
    _show(_documents(found.value.topics), view.terminal)
    return view.note(found.warnings)


# Changing.


async def _create(view: ClusterView) -> int:
    from emberq.cluster.upstream import UpstreamError

    topic, channel = view.arguments.topic, getattr(view.arguments, "channel", "")
    if view.topology.addresses.lookupds:
        done = await view.actions.create(topic, channel)
        return _report(view, "created", view.topology.addresses.lookupds, done.warnings)
    warnings, nsqds = [], view.topology.addresses.nsqds
    path = "/channel/create" if channel else "/topic/create"
    names = {"topic": topic, "channel": channel} if channel else {"topic": topic}
    for nsqd in nsqds:
        try:
            await view.ask.post(nsqd, path, **names)
        except UpstreamError as failure:
            warnings.append(f"{nsqd} has no such topic" if failure.refusal == "TOPIC_NOT_FOUND" else str(failure))
    return _report(view, "created", nsqds, warnings)


def _changing(verb: str) -> Work:
    async def work(view: ClusterView) -> int:
        from emberq.cluster.action import Verb

        figures = await view.figures()
        nsqds = [each.http_address for each in await view.nsqds()]
        channel = getattr(view.arguments, "channel", "")
        if verb == Verb.EMPTY and not await _confirmed(view, "Empty", figures, nsqds):
            return FAILED
        done = await view.actions.act(Verb(verb), view.arguments.topic, channel)
        return _report(view, _DONE_WORDS[verb], nsqds, done.warnings)

    return work


_DONE_WORDS = {"pause": "paused", "unpause": "unpaused", "empty": "emptied"}


async def _delete(view: ClusterView) -> int:
    figures = await view.figures()
    nsqds = [each.http_address for each in await view.nsqds()]
    if not await _confirmed(view, "Delete", figures, nsqds):
        return FAILED
    done = await view.actions.delete(view.arguments.topic, getattr(view.arguments, "channel", ""))
    return _report(view, "deleted", nsqds, done.warnings)


async def _tombstone(view: ClusterView) -> int:
    node, topic = view.arguments.node, view.arguments.topic
    if not view.topology.addresses.lookupds:
        hint = "--lookupd-http-address names one."
        raise CommandError("nsqlookupds keep tombstones, and none was named", hint=hint)
    await view.topology.node(node)
    question = f"Take the topic {topic} away from {node}, with its messages there?"
    if not await view.terminal.confirm(question, is_agreed=view.arguments.yes):
        return FAILED
    done = await view.actions.tombstone(topic, node=node)
    return _report(view, "tombstoned", [node], done.warnings)


async def _drain(view: ClusterView) -> int:
    node, is_cancelled = view.arguments.node, view.arguments.cancel
    if is_cancelled and view.arguments.wait:
        raise CommandError("--wait waits for the end of a drain, which --cancel takes back")
    if not is_cancelled:
        found = (await view.reader.node(node)).value
        held = sum(each["depth"] for each in _documents(found.topics))
        cost = f"{counted(held, 'message')} in {counted(len(found.topics), 'topic')}"
        question = f"Drain {node}, which takes nothing new and stops when consumers have emptied it of {cost}?"
        if not await view.terminal.confirm(question, is_agreed=view.arguments.yes):
            return FAILED
    done = await view.actions.drain(node, is_cancelled=is_cancelled)
    state = done.value
    document = {"node": node, "draining": state.is_draining, "messages": state.message_count}
    held_text = f"it holds {counted(state.message_count, 'message')} in {counted(state.topic_count, 'topic')}"
    text = f"{node} takes messages again" if is_cancelled else f"{node} is being drained; {held_text}"
    view.terminal.report(document, text)
    status = view.note(done.warnings)
    return await _wait_for_drain(view, state) if view.arguments.wait else status


async def _wait_for_drain(view: ClusterView, state: DrainState) -> int:
    """Show how the node gets empty, until it has stopped; FAILED if the drain is cancelled meanwhile."""
    import asyncio

    from emberq.cluster.upstream import NodeNotFoundError, UpstreamsFailedError

    node, first, told = view.arguments.node, state.message_count, ""
    with view.terminal.progress("drained", total=first) as progress:
        left = first
        while state.is_draining:
            progress.advance(max(left - state.message_count, 0))
            left = min(left, state.message_count)
            waits = next((f"{topic} waits for {reason}" for topic, _, reason in state.waits if reason in _STUCK), "")
            if waits and waits != told:
                view.terminal.note(waits)
                told = waits
            await asyncio.sleep(WAIT_S)
            try:
                state = (await view.actions.drain_state(node)).value
            except (NodeNotFoundError, UpstreamsFailedError) as failure:
                if isinstance(failure, UpstreamsFailedError) and _REFUSED not in str(failure):
                    continue  # it answers late, or is about to stop
                progress.advance(left)
                view.terminal.report({"node": node, "drained": True}, f"{node} is drained and has stopped")
                return DONE
    view.terminal.note(f"the drain of {node} was cancelled")
    return FAILED


WAIT_S = 0.5
"""How often a node that is being drained is asked how far it is."""
_REFUSED = "cannot connect: "
"""What is said of a daemon that has stopped, and that nsqlookupd has yet to forget."""
_STUCK = ("consumers", "being unpaused", "a channel")
"""What does not come by itself, as nsqd words it."""


async def _confirmed(view: ClusterView, verb: str, figures: TopicFigures, nsqds: Sequence[str]) -> bool:
    """Whether the user wants it, after a look at what it would cost."""
    channel = getattr(view.arguments, "channel", "")
    concerned = [each for each in figures.channels if not channel or each.channel_name == channel]
    held = sum(each.depth + each.in_flight_count + each.deferred_count for each in concerned)
    held += 0 if channel else figures.depth
    where = f"channel {channel} of topic {figures.topic_name}" if channel else f"topic {figures.topic_name}"
    cost = f"{counted(held, 'message')} on {counted(len(nsqds), 'nsqd')}"
    return await view.terminal.confirm(f"{verb} the {where}, with {cost}?", is_agreed=view.arguments.yes)


def _report(view: ClusterView, done: str, daemons: Sequence[str], warnings: Sequence[str]) -> int:
    status = view.note(warnings)
    topic, channel = view.arguments.topic, getattr(view.arguments, "channel", "")
    where = f"{topic}/{channel}" if channel else topic
    document = {"topic": topic, **({"channel": channel} if channel else {}), "done": done, "on": list(daemons)}
    if len(warnings) < len(daemons) or not warnings:
        view.terminal.report({**document, "failures": list(warnings)}, f"{done} {where} ({', '.join(daemons)})")
    return status


# The table.


def _commands(noun: str, takes: tuple[str, ...], looking: Iterable[ClusterCommand]) -> dict[str, ClusterCommand]:
    """The commands of topics or of channels, by their verb."""
    what = "a topic with its channels" if noun == "topic" else "a channel"
    kept = "a topic: its channels get no messages" if noun == "topic" else "a channel: its consumers get no messages"
    changing = (
        ("create", f"create a {noun}", _create, False),
        ("delete", f"delete {what} and all messages in it", _delete, True),
        ("pause", f"pause {kept} until it is unpaused", _changing("pause"), False),
        ("unpause", f"let messages of a paused {noun} flow again", _changing("unpause"), False),
        ("empty", f"throw away the messages that wait in a {noun}", _changing("empty"), True),
    )
    commands = [
        ClusterCommand(words=f"{noun} {verb}", summary=summary, work=work, takes=takes, is_destructive=is_destructive)
        for verb, summary, work, is_destructive in changing
    ]
    return {command.words.partition(" ")[2]: command for command in (*looking, *commands)}


TOPIC = _commands(
    "topic",
    ("topic",),
    [
        ClusterCommand(words="topic list", summary="list the topics of the cluster", work=_list_topics),
        ClusterCommand(
            words="topic stats", summary="show figures of topics and channels", work=_topic_stats, takes=("topic?",)
        ),
    ],
)
CHANNEL = _commands(
    "channel",
    ("topic", "channel"),
    [
        ClusterCommand(
            words="channel list", summary="list the channels of a topic", work=_list_channels, takes=("topic",)
        ),
        ClusterCommand(
            words="channel stats",
            summary="show figures and clients of a channel",
            work=_channel_stats,
            takes=("topic", "channel"),
        ),
    ],
)
NODE = {
    "list": ClusterCommand(words="node list", summary="list the nsqds of the cluster", work=_list_nodes),
    "stats": ClusterCommand(
        words="node stats", summary="show figures of all that an nsqd has", work=_node_stats, takes=("node",)
    ),
    "drain": ClusterCommand(
        words="node drain",
        summary="have an nsqd take nothing new, and stop when consumers have emptied it",
        work=_drain,
        takes=("node",),
        is_destructive=True,
        switches=(
            ("--cancel", "let an nsqd that is being drained go on as before"),
            ("--wait", "wait until it is empty and has stopped, and show how it gets on"),
        ),
    ),
    "tombstone": ClusterCommand(
        words="node tombstone",
        summary="take a topic away from one nsqd, which others keep",
        work=_tombstone,
        takes=("node", "topic"),
        is_destructive=True,
    ),
}


def _subcommands(table_name: str, commands: dict[str, ClusterCommand]) -> tuple[Subcommand, ...]:
    here = f"emberq.cli.topic:{table_name}"
    return tuple(
        Subcommand(verb, f"{here}.{verb}", command.summary, f"{here}.{verb}.make_parser")
        for verb, command in commands.items()
    )


TOPIC_SUBCOMMANDS = _subcommands("TOPIC", TOPIC)
CHANNEL_SUBCOMMANDS = _subcommands("CHANNEL", CHANNEL)
NODE_SUBCOMMANDS = _subcommands("NODE", NODE)
REMARK = "They ask the nsqds of --nsqd-http-address, or those that the nsqlookupds of --lookupd-http-address know.\n"


def topic(argv: Sequence[str]) -> int:
    """Run `emberq topic`; the exit status."""
    return run_subcommand("emberq topic", TOPIC_SUBCOMMANDS, argv, remark=REMARK)


def channel(argv: Sequence[str]) -> int:
    """Run `emberq channel`; the exit status."""
    return run_subcommand("emberq channel", CHANNEL_SUBCOMMANDS, argv, remark=REMARK)


def node(argv: Sequence[str]) -> int:
    """Run `emberq node`; the exit status."""
    return run_subcommand("emberq node", NODE_SUBCOMMANDS, argv, remark=REMARK)
