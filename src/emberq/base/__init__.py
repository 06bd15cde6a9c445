"""What every program needs, and knows nothing of NSQ's protocol.

clock          time as a parameter
compiled       what tells mypyc more about a class than Python can say
timers         one heap of alarms for everything that waits
text           durations, moments, quoting, masked secrets
address        TCP, Unix and CIDR addresses
listener       listening on one, for plain connections or for TLS
tls            TLS contexts of clients and servers, from files and flags
unverified_certificate  client certificates of any signer
file           durable files: replace, write fully, sync, move without replacing
log            log lines as NSQ writes them, or as JSON
flag           Go's flag grammar, and the kinds of values a flag can have
settings       one declaration per setting: flags, TOML, help, reference page
program        from a command line to an exit status, for daemons and tools
daemon         what a daemon's loop carries: alarms, lag, garbage sweeps
metrics        Prometheus text, and the metrics that every daemon has
task           a loop in a thread, a line of tasks, a rate limit
child_process  the processes that this one has started, found and ended

Internal: no part of the public API (docs/API.md).
"""
