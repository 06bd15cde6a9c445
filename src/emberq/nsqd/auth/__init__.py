"""Who may publish and subscribe to what, as the authorization servers say.

    pattern      regular expressions, as the servers write them
    permission   the answer of a server, checked and turned into a decision per topic and channel (no I/O)
    authorizer   puts the question to the servers
    connection   what one TCP connection may do: AUTH, and the check ahead of SUB, PUB, MPUB and DPUB
    guard        the same servers guard the HTTP API, if `--auth-http-api` asks for it

A secret is known to the connection that sent it and to the query that carries it, nobody else: no log line, error text,
statistic or `repr` holds one.
"""
