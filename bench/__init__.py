"""A load generator for nsqd, and side-by-side measurements with it: `python -m bench`.

It speaks the wire protocol by itself, in C, and imports nothing of emberq, so that it can judge any nsqd. Only when
client libraries are measured does it use one, ours among them:

    python -m bench                                  measure the nsqd beside this interpreter
    python -m bench --peer /path/to/another/nsqd     run both by turns and compare
    python -m bench --nsqd 127.0.0.1:4150            measure one that is already running
    python -m bench --clients                        measure emberq's client beside pynsq, gnsq and ansq, and
                                                     emberq beside NATS, Redis and RabbitMQ
    python -m bench --only 'queue-*'                 the latter alone

The parts, from the bytes upwards:

    failure      why a run does not count
    load/        the load generator, in C: it publishes, consumes, requests, comes and goes
    generator    its processes: built, connected, started together, asked for their results
    frame        the bytes of a handshake
    connection   one blocking socket with its handshake done
    idle         many connections that only wait
    process      CPU and memory of nsqd, from /proc
    server       an nsqd to load: started for one run, or found running
    certificate  what nsqd needs to offer TLS
    metric       values, medians, percentiles
    machine      what it was measured on
    stage        what a work has at hand: the server, its sizes, the means to measure
    traffic      works of steady traffic
    event        works of single events, with a bystander
    scenario     the table of works
    comparison   rounds by turns
    crew         worker processes in Python, for client libraries
    clients      client libraries side by side, on one nsqd, and queues with theirs
    report       progress, tables, Markdown, JSON

Rates on a shared machine wander; the CPU that nsqd spends per message wanders far less, so every work
reports both. The generator's own CPU is measured too: where it comes near nsqd's, a rate says less.
"""
