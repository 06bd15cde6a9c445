"""Text from outside, made fit for one line of a terminal or a log.

Names, addresses and bodies of errors come from clients and files; one of them may hold a line feed or a terminal
escape. Whatever is shown goes through here, so that a line always is one line and shows what it says.
"""

from __future__ import annotations

import os
import sys


def one_line(text: str) -> str:
    r"""`text` with everything unprintable written as an escape (`\n`, `\x1b`, `\u2028`)."""
    if text.isprintable():  # nearly always, and it costs one pass in C
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def quoted(text: str) -> str:
    """`text` between double quotes, for an error that says what it was given."""
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def forget_output() -> None:
    """Let what is still buffered for a closed standard output go nowhere, or Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
