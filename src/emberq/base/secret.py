"""Addresses with a password in them, made fit to be shown.

An authorization server may be given as `http://user:password@host/path?token=abc`. Whoever may read the API need not
be one who may know those: what stands before the `@` and the values of the query are replaced.
"""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"(^|//|[=,])[^/=,\s]*@")
_QUERY_VALUE = re.compile(r"([?&][^=&#\s]*=)[^&#,\s]*")


def masked(text: str) -> str:
    """`text` without the secrets of the addresses in it."""
    return _QUERY_VALUE.sub(r"\1***", _USER_INFO.sub(r"\1***@", text))
