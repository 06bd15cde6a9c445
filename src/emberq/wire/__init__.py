"""The protocols without I/O: bytes in, commands or frames out, for both ends of a connection.

    error          what can be wrong with what a client sent
    parameter      how names, numbers, producer ids, JSON objects and bodies in JSON are spelled and refused
    frame          what nsqd sends: frames, and the layout of a message
    command        what a client sends: the commands, as values and as bytes
    line           the lines of commands, and which is legal when
    run            short ways for what clients send most: runs of FIN and PUB, REQ, RDY
    body           a body that comes in several packets: kept as it came, joined once
    mpub           the body of an MPUB: one walk over its sizes
    decoder        bytes in, commands out
    negotiation    IDENTIFY: what a client asks for and gets
    compression    snappy and deflate streams
    dead_letter    the envelope of a dead letter, and where it goes back to
    journal_batch  a batch of the journal, as it lies on disk and travels by /journal/read
    lookup         nsqlookupd's V1 protocol, and what its HTTP API answers

Internal: programs use `emberq.client`.
"""
