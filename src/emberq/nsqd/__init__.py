"""nsqd, the daemon that queues messages and delivers them.

Start and stop
    options                  every setting: flags, config keys, their rules
    daemon                   what there is, and in which order it starts and stops

One client, from the socket to the broker
    session                  bytes to commands, commands to their handlers; when to close
    connection               what leaves and when: output, deadlines, order of replies, pauses
    publishing               PUB, MPUB, DPUB, and how small publishes are gathered
    subscription             SUB, RDY, FIN, REQ, TOUCH, CLS
    context                  what all sessions share; turning a stream into TLS, snappy or deflate
    gate                     which connections are served at all

TLS and authorization
    tls                      what a TLS handshake agreed on
    auth/                    who may publish and subscribe to what

The rest of the world
    api/                     the HTTP API
    lookup                   all nsqlookupds: registering there, and the channels of a new topic
    lookup_peer              one nsqlookupd: the connection and what is said on it
    health                   free disk space, failed writes: what /ping says
    drain                    a node that is to go: emptied by its consumers, then stopped
    metrics                  /metrics, and memory under the names of /stats
    statsd                   pushing figures to statsd

Internal: no part of the public API (docs/API.md).
"""
