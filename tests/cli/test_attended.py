"""A subcommand that stops when nobody holds its standard input any more."""

from __future__ import annotations

import subprocess
import sys

TIMEOUT_S = 30.0
"""Generous, for a machine that is busy with other tests."""


def test_a_daemon_stops_in_good_order_when_it_is_left_alone() -> None:
    command = [sys.executable, "-m", "emberq.cli.attended", "nsqlookupd"]
    ports = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    with subprocess.Popen([*command, *ports], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdin is not None
        assert daemon.stderr is not None
        while "HTTP: listening on" not in daemon.stderr.readline():
            assert daemon.poll() is None
        daemon.stdin.write("what is said there does not matter\n")
        daemon.stdin.flush()
        daemon.stdin.close()
        assert daemon.wait(TIMEOUT_S) == 0
