"""How a message is shown: to a program as JSON, to a person as its body with the facts above it.

What stands in a message comes from anybody, and a terminal obeys what it is sent; so nothing unprintable reaches it.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from emberq.base.clock import NS_PER_SECOND
from emberq.base.printable import one_line
from emberq.client import Message

if TYPE_CHECKING:
    from rich.console import RenderableType


def message_document(message: Message, *, topic: str) -> dict[str, Any]:
    """A message for `--json`. A body that is not text comes as `body_base64`."""
    document: dict[str, Any] = {
        "topic": topic,
        "id": message.id.decode(),
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        "nsqd": message.address,
    }
    try:
        document["body"] = message.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(message.body).decode()
    return document


def headline(message: Message) -> str:
    """The facts about a message in one line."""
    published = datetime.fromtimestamp(message.timestamp_ns / NS_PER_SECOND, UTC).isoformat(timespec="milliseconds")
    again = f" attempt {message.attempts}" if message.attempts > 1 else ""
    return f"{published} {message.id.decode()} from {message.address}{again}"


def renderable(message: Message) -> RenderableType:
    """A message for a terminal: JSON laid out in colours, other text as it is, anything else as an escaped string."""
    from rich.console import Group
    from rich.json import JSON
    from rich.text import Text

    head = Text(one_line(headline(message)), style="dim")
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return Group(head, Text(repr(message.body)[2:-1]))
    try:
        value = json.loads(text)
    except ValueError:
        return Group(head, Text("\n".join(map(one_line, text.split("\n")))))
    if isinstance(value, dict | list):
        return Group(head, JSON.from_data(value, ensure_ascii=False))
    return Group(head, Text(one_line(text)))
