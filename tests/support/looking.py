"""What can be seen of a running NSQ from outside, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from emberq.embedded import EmbeddedThread


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def topic_stats(nsq: EmbeddedThread, topic: str) -> list[Any]:
    """What nsqd tells of the topic; nothing if there is none."""
    return get_json(f"http://{nsq.nsqd_http_addresses[0]}/stats?format=json&topic={topic}")["topics"] or []


def channels(nsq: EmbeddedThread, topic: str) -> list[str]:
    return [channel["channel_name"] for each in topic_stats(nsq, topic) for channel in each["channels"]]


def is_registered(nsq: EmbeddedThread, topic: str) -> bool:
    """Whether nsqlookupd knows that all nsqds have the topic."""
    try:
        producers = get_json(f"http://{nsq.lookupd_http_addresses[0]}/lookup?topic={topic}")["producers"]
    except urllib.error.HTTPError:
        return False
    return len(producers) == len(nsq.nsqd_http_addresses)
