"""The `emberq journal` command: look into journals on disk, check them, and move channels of a running nsqd."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emberq.base.printable import quoted
from emberq.cli.main import Subcommand
from emberq.cli.terminal import DONE, MISUSED

SUBCOMMANDS = (
    Subcommand("ls", "emberq.cli.journal_ls:main", "the journals in a data folder, and how far their channels are"),
    Subcommand("cat", "emberq.cli.journal_cat:main", "the messages of a journal"),
    Subcommand("verify", "emberq.cli.journal_verify:main", "read every byte of journals and say what is damaged"),
    Subcommand("seek", "emberq.cli.journal_seek:main", "have a channel deliver again, or skip ahead"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if not words:
        sys.stderr.write(usage())
        return MISUSED
    first = words[0]
    if first in ("-h", "-help", "--help"):
        sys.stdout.write(usage())
        return DONE
    for subcommand in SUBCOMMANDS:
        if subcommand.name == first:
            return subcommand.run(words[1:])
    print(f"emberq journal: unknown command {quoted(first)}", file=sys.stderr)
    sys.stderr.write(usage())
    return MISUSED


def usage() -> str:
    """The list of subcommands."""
    lines = [f"  {subcommand.name:6}  {subcommand.summary}\n" for subcommand in SUBCOMMANDS]
    return (
        "Usage: emberq journal <command> [flags]\n\n"
        "Commands (emberq journal <command> --help tells more):\n"
        f"{''.join(lines)}\n"
        "ls, cat and verify read the files and need no nsqd; it may run meanwhile. seek talks to nsqd.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
