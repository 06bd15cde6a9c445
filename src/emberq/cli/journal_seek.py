"""`emberq journal seek`: move a channel to another place of its topic's journal."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from emberq.base.text import parse_moment, quoted
from emberq.cli.argument import add_cluster_flags, channel_name, topic_name, topic_nsqds, upstreams
from emberq.cli.terminal import DONE, FAILED, CommandError, CommandParser, Terminal, command_parser, run_command

if TYPE_CHECKING:
    from emberq.cluster.upstream import Upstreams

EXAMPLES = """\
examples:
  emberq journal seek orders mail earliest               deliver everything that is kept once more
  emberq journal seek orders mail latest                 skip everything
  emberq journal seek orders mail 2026-11-15T09:00:00Z   deliver again what was published since nine
  emberq journal seek orders mail 1000                   go on with the message that has offset 1000

Only this channel is moved. Messages in flight to its consumers are forgotten. With --lookupd-http-address the channel
is moved on every nsqd that has the topic. Each of them counts its own offsets, so a number is for one nsqd alone.
"""
_WORDS = ("earliest", "latest")
_OFFSET = re.compile(r"[0-9]{1,18}", re.ASCII)
_EXPLAINED = {
    "TOPIC_NOT_FOUND": "has no such topic",
    "CHANNEL_NOT_FOUND": "has no such channel",
    "TOPIC_NOT_JOURNALED": "does not journal this topic, so there is nothing to go back to",
    "CHANNEL_NOT_JOURNALED": "keeps no place for an ephemeral channel",
    "OFFSET_GONE": "has removed this message already; `earliest` is the oldest one it has",
    "OFFSET_AHEAD": "does not have this message yet; `latest` is behind the newest one it has",
    "NOT_FOUND": "knows no seek: only emberq's nsqd does",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Move a channel; the exit status."""
    return run_command(make_parser(), argv, _seek)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq journal seek", "Have a channel deliver again, or skip ahead.", epilog=EXAMPLES)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC")
    parser.add_argument("channel", type=channel_name, metavar="CHANNEL")
    parser.add_argument("to", type=_place, metavar="TO", help="earliest, latest, an offset, or a time (RFC 3339)")
    add_cluster_flags(parser)
    return parser


def _place(text: str) -> str:
    if text in _WORDS or _OFFSET.fullmatch(text) or parse_moment(text) is not None:
        return text
    expected = "earliest, latest, an offset, or a time such as 2026-11-15T09:00:00Z"
    raise argparse.ArgumentTypeError(f"{quoted(text)} is not a place in a journal: {expected}")


async def _seek(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from emberq.cluster.upstream import UpstreamError

    ask = upstreams(arguments)
    nsqds = await topic_nsqds(arguments, ask, terminal)
    if len(nsqds) > 1 and _OFFSET.fullmatch(arguments.to):
        raise CommandError(
            f"{len(nsqds)} nsqds have the topic, and each counts its own offsets",
            hint="Give a time, or choose one with --nsqd-http-address.",
        )
    status = DONE
    for nsqd in nsqds:
        try:
            offset = await _seek_on(nsqd, arguments, ask)
        except UpstreamError as failure:
            explained = _EXPLAINED.get(failure.refusal)
            terminal.note(f"{nsqd} {explained}" if explained else str(failure))
            status = FAILED
        else:
            names = {"topic": arguments.topic, "channel": arguments.channel}
            text = f"{nsqd}: {arguments.topic}/{arguments.channel} goes on at offset {offset}"
            terminal.report({"nsqd": nsqd, **names, "offset": offset}, text)
    return status


async def _seek_on(nsqd: str, arguments: argparse.Namespace, ask: Upstreams) -> int:
    """Move the channel on one nsqd; the offset from which it goes on."""
    from emberq.cluster.upstream import MalformedDocumentError, UpstreamError, as_document, integer

    answer = await ask.post(nsqd, "/channel/seek", topic=arguments.topic, channel=arguments.channel, to=arguments.to)
    try:
        return integer(as_document(json.loads(answer)), "offset")
    except (ValueError, MalformedDocumentError) as wrong:
        raise UpstreamError(f"{nsqd} does not say where the channel is now") from wrong
