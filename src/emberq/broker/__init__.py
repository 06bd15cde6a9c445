"""The broker: topics, channels and subscribers. Synchronous, without sockets; time and disk are given to it.

    broker             all topics of one nsqd
    topic              what both kinds of topic have in common
    channel            sharing a topic's messages out among subscribers
    classic            topics and channels as NSQ has them, and their ids
    journaled_topic    a topic that is a log
    journaled_channel  a channel that is a cursor over that log
    journal_queue      the queue of such a channel, and the batches in it
    batch              messages that arrived together stay together
    queue              memory first, then disk
    limit              how much may wait in a topic, and for how long
    in_flight          messages that are not queued: held by a subscriber, deferred, on their way to another topic
    dead_letter        messages that were tried often enough: policies, forwarding, redrive
    store              which files belong to which topic or channel
    migration          disk queues moved into a journal
    stats              snapshots, and percentiles of latency
    error              what the broker refuses

A published message goes from `broker` to a topic, from there in a `batch` to each `channel`, into its `queue`, and
`in_flight` to a subscriber.

Internal: no part of the public API (docs/API.md).
"""
