"""Arguments of a request, in the query string, that it cannot do without.

A parameter that is present but empty is present. What it may say is for the daemon to judge.
"""

from __future__ import annotations

from emberq.http.message import HttpError, Query


def required(query: Query, name: str) -> str:
    """The parameter, whatever it says; 400 MISSING_ARG_<NAME> if it is not there."""
    value = query.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value
