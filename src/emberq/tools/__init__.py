"""The command-line tools of NSQ: nsq_tail, nsq_stat, nsq_to_file, nsq_to_http, nsq_to_nsq, to_nsq.

`program` runs any of them: flags, log lines, signals, exit status. `client_options` reads `--consumer-opt` and
`--producer-opt`, `source` holds what all that consume have in common. Each tool is a module with its flags (`Options`,
`SETTINGS`) and a coroutine function `run(options, stop_asked)`.
"""
