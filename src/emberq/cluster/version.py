"""Which of two versions is the older, by the precedence of semantic versions.

    1.3.0-rc.1 < 1.3.0-rc.2 < 1.3.0 < 1.3.1;   what cannot be read counts as 0.0.0

A version of emberq, `1.3.0-emberq`, names the NSQ it is compatible with and who made it: it is 1.3.0, not something
that came before it. Beside the reference's nsqd of that version, neither is out of date.
"""

from __future__ import annotations

import re

_MAKER = "-emberq"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)

Precedence = tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]
"""Numbers; whether it is a release; the parts of what stands behind the dash, where numbers come before words."""

_UNREADABLE: Precedence = ((0, 0, 0), True, ())


def precedence(version: str) -> Precedence:
    """Something that is smaller the older `version` is."""
    read = _VERSION.fullmatch(version.removesuffix(_MAKER))
    if read is None:
        return _UNREADABLE
    major, minor, patch, before = read.groups()
    parts = () if before is None else tuple(_part(part) for part in before.split("."))
    return (int(major), int(minor), int(patch)), before is None, parts


def _part(part: str) -> tuple[bool, int, str]:
    return (False, int(part), "") if part.isdigit() else (True, 0, part)
