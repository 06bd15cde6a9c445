"""The names of files, made from `--filename-format` and `--datetime-format`.

    <TOPIC>.<HOST><REV>.<DATETIME>.log   ->   clicks.web1-000002.2024-05-17_09.log

    <TOPIC>     the topic
    <HOST>      the short host name, or --host-identifier, in which <SHORT_HOST> and <HOSTNAME> stand for the host's
    <PID>       the number of the process
    <DATETIME>  local time by --datetime-format
    <REV>       `-` and six digits that tell files of otherwise equal names apart: -000000, -000001, ...

A datetime format knows %a %A %b %B %d %H %I %m %M %p %S %y %Y %z %Z and %%; any other % stands for itself. The names of
days and months are English wherever the program runs.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass

from emberq.base.clock import NS_PER_SECOND

PLAIN = 0
"""The compression level of a file that is not compressed."""
REVISION = "<REV>"
GZIP_SUFFIX = ".gz"

_DIRECTIVE = re.compile(r"%[aAbBdHImMpSyYzZ%]")


@dataclass(frozen=True, slots=True)
class FileName:
    """A name, perhaps with a path before it, in which the revision may still be open."""

    text: str

    def with_revision(self, revision: int) -> str:
        """The name of that revision; the same for all of them where the format has no <REV>."""
        return self.text.replace(REVISION, f"-{revision:06}")


class FileNameFormat:
    """Makes the names of one topic's files."""

    def __init__(self, template: str, *, datetime_format: str, topic: str, host: str, pid: int) -> None:
        known = {"<TOPIC>": topic, "<HOST>": host, "<PID>": str(pid)}
        for token, value in known.items():
            template = template.replace(token, value)
        self._template = template
        self._datetime_format = datetime_format

    def at(self, wall_ns: int) -> FileName:
        """The name of a file that is written at that time."""
        return FileName(self._template.replace("<DATETIME>", format_time(self._datetime_format, wall_ns)))


def format_time(datetime_format: str, wall_ns: int) -> str:
    """Local time as the format asks for it."""
    local = time.localtime(wall_ns // NS_PER_SECOND)
    # The process never leaves the "C" locale for times, so strftime speaks English.
    return _DIRECTIVE.sub(lambda found: time.strftime(found.group(), local), datetime_format)


def complete_template(template: str, *, has_revisions: bool, is_gzip: bool) -> str:
    """The template with the ending that gzip files need, and without <REV> where there is but one file of a name."""
    if not has_revisions:
        template = template.replace(REVISION, "")
    if is_gzip and not template.endswith(GZIP_SUFFIX):
        template += GZIP_SUFFIX
    return template


def host_part(identifier: str) -> str:
    """What stands for <HOST>."""
    hostname = socket.gethostname()
    short = hostname.partition(".")[0]
    if not identifier:
        return short
    return identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)
