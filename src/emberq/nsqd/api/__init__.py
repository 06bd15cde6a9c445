"""nsqd's HTTP API: one module per noun, one table of routes.

Handlers are synchronous and run inside the event loop's turn that brought the request, except those that have to wait
(profiles, long polls, what must reach the disk before it is answered). They refuse by raising HttpError; the order of
their checks is part of the API, because clients see which complaint comes first.
"""
