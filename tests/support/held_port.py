"""Ports that a daemon is to listen on later: held until then, or the system could give them to another process.

A held port is bound and not listened on. So connections to it are refused, and no process that asks for any free port
gets it; a daemon that asks for this very one does, because both sides set SO_REUSEADDR.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

LISTENING = re.compile(r"\blistening on 127\.0\.0\.1:(\d+)")


@contextmanager
def hold_port(port: int = 0) -> Iterator[int]:
    """Hold a port, any free one by default, and give its number."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        yield holder.getsockname()[1]


def hold_ports(log: str) -> ExitStack:
    """Hold the ports on which a daemon listened, as its log tells, for its successor.

    One that another process has got meanwhile is not held: a successor that needs it says so.
    """
    with ExitStack() as held:
        for port in set(LISTENING.findall(log)):
            with suppress(OSError):
                held.enter_context(hold_port(int(port)))
        return held.pop_all()
