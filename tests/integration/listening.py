"""Where a running nsqd listens besides its TCP port: the system chose the ports, and its log tells them."""

from __future__ import annotations

import re

from tests.support.nsqd_process import NsqdProcess
from tests.support.waiting import wait_until

ANY_HTTP_PORT = "--http-address=127.0.0.1:0"
ANY_HTTPS_PORT = "--https-address=127.0.0.1:0"


def port_of(nsqd: NsqdProcess, label: str) -> int:
    """The port that is logged as `HTTP` or `HTTPS`; nsqd must have been started with such a port."""
    line = re.compile(rf"\b{label}: listening on 127\.0\.0\.1:(\d+)")
    wait_until(lambda: line.search(nsqd.log) is not None)
    (port,) = line.findall(nsqd.log)
    return int(port)
