"""NSQ's command-line tools. Each has flags (`SETTINGS`), a coroutine function `run(options, stop_asked)` and `main`.

    client_flags   --consumer-opt, --producer-opt, the flags of a source, and running its consumers
    host_pool      which of several hosts is next, and how long deliveries take
    nsq_tail       prints messages
    nsq_stat       prints the figures of a channel
    nsq_to_file    writes messages to files
    nsq_to_http    sends messages to HTTP servers
    nsq_to_nsq     copies messages to other topics and nsqds
    to_nsq         publishes standard input

`emberq.base.program` runs each of them: flags, log lines, signals, exit status.

Internal: no part of the public API (docs/API.md).
"""
