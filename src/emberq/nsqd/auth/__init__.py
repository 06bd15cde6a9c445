"""Who may publish and subscribe to what, as the authorization servers say.

    permission   the answer of a server, checked and turned into a decision per topic and channel (no I/O)
    authorizer   asking the servers; what one TCP connection may do: AUTH, and the check before SUB, PUB, MPUB and DPUB
    guard        the same servers guard the HTTP API, if `--auth-http-api` asks for it

A secret is known only to the connection that sent it and to the query that carries it. No log line, error text,
statistic or `repr` holds one.

Internal: no part of the public API (docs/API.md).
"""
