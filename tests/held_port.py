"""Ports of a daemon that has ended, kept for its successor: until it comes, the system could give them to anybody."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack

LISTENING = re.compile(r"\blistening on 127\.0\.0\.1:(\d+)")


def hold_ports(log: str) -> ExitStack:
    """Hold the ports on which a daemon listened, as its log tells; they are let go when the stack is closed.

    They are bound and not listened on. So connections are refused, nobody who asks for any free port gets one of them,
    and yet whoever asks for this very one may have it, because both sides allow that (SO_REUSEADDR).
    """
    with ExitStack() as held:
        for port in set(LISTENING.findall(log)):
            holding = held.enter_context(socket.socket())
            holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holding.bind(("127.0.0.1", int(port)))
        return held.pop_all()
