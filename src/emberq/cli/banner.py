"""What `emberq up` says once everything is up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a daemon is to be found, each as host:port."""

    tcp: str
    http: str


def banner(*, lookupd: Addresses, nsqds: Sequence[Addresses], admin: str, data_path: str) -> str:
    """What there is, and what to try."""
    rows = [("nsqlookupd", lookupd), *(("nsqd", nsqd) for nsqd in nsqds)]
    lines = [f"  {name:<11} tcp {where.tcp:<16} http://{where.http}" for name, where in rows]
    nsqd = nsqds[0].http
    return "\n".join(
        [
            f"emberq is up. Ctrl-C stops it; messages are kept in {data_path}.",
            "",
            *lines,
            f"  {'nsqadmin':<11} {'':<20} http://{admin}",
            "",
            "Try, in another terminal:",
            f"  curl -d 'hello' 'http://{nsqd}/pub?topic=greetings'",
            f"  curl 'http://{nsqd}/stats'",
            f"  curl 'http://{lookupd.http}/lookup?topic=greetings'",
        ]
    )
