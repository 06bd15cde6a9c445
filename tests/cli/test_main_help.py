"""`--help` of every command: asked for often, by people who wait for it, so it loads no more than it needs."""

from __future__ import annotations

import json
import subprocess
import sys

from emberq.cli.main import SUBCOMMANDS

WORK = {"asyncio", "uvloop", "rich", "concurrent.futures", "emberq.client", "emberq.cluster", "emberq.http"}
"""What only a command that does something needs."""
DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")
"""Their settings name versions of TLS, so they load ssl."""
TOOLS_OF_NSQ = ("nsq_", "to_nsq")
ASK = """
import contextlib, io, json, sys
from emberq.cli.main import main

loaded = {}
for name in sys.argv[1:]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        status = main([name, "--help"])
    loaded[name] = [status, len(shown.getvalue()), sorted(sys.modules)]
print(json.dumps(loaded))
"""


def test_help_loads_nothing_that_works() -> None:
    names = [each.name for each in SUBCOMMANDS if not each.name.startswith(TOOLS_OF_NSQ)]
    names.sort(key=DAEMONS.__contains__)  # they are asked last
    ended = subprocess.run([sys.executable, "-c", ASK, *names], capture_output=True, text=True, check=True)
    for name, (status, size, modules) in json.loads(ended.stdout).items():
        assert status == 0
        assert size > 100, name
        unwanted = WORK if name in DAEMONS else {*WORK, "ssl"}
        assert unwanted & set(modules) == set(), name
