"""HTTP/1.1 for the daemons: a small server, and the client that asks other servers.

The way of a request through the server
    server        one connection, and all of them
    reader        bytes in, requests out
    router        from a request's head to its handler: limits, guards, table of routes
    browser       the guard against pages of other sites
    access        the guard that wants a secret, and the files of secrets
    message       requests, responses, errors, arguments, gzip
    body          bodies made or sent piece by piece: long texts, streams and files

The rest
    client        asking another server
    live_config   /config/<option> of nsqd and nsqadmin
    debug         /debug/pprof: stacks, profile, allocations

Internal: no part of the public API (docs/API.md).
"""
