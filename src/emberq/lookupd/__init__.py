"""nsqlookupd: which nsqd has which topic, and where it is.

options    every setting
registry   topics, channels and the nsqds that have them; no I/O
session    an nsqd's connection
api        the HTTP API
daemon     start, stop, /metrics

Internal: no part of the public API (docs/API.md).
"""
