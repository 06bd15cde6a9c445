"""The `emberq` command: a module for each subcommand, and what they share.

main            the table of subcommands
terminal        how subcommands are called, write and end; progress bars
table           tables on a terminal: names are kept, figures left out
argument        the flags that several subcommands share
context         where a command finds its cluster: flags, environment, named contexts
catalog         all commands with their flags, read from where they are declared
completion      the scripts with which shells complete commands and flags
manual          man pages, and the reference page of all commands
topic           topics, channels and nodes: list, create, delete, pause, empty, stats
bench           how fast an nsqd is
attended        a subcommand that stops when its parent process is gone
daemons         nsqd, nsqlookupd, nsqadmin
up              a whole NSQ on this machine
pub             publish messages
tail            show the messages of a topic
peek            look at the next messages of a channel
top             the live screen of a cluster
top_view        its rows, keys and drawing
journal         list, print and verify journals on disk
journal_seek    move a channel to another place of its journal
requeue_dead    publish dead letters again
spark_work      running Spark in a thread, with /metrics
pipeline        run, check and look at a pipeline
archive         topics to Parquet files
replay          an archive or a journal published again
sql             Spark SQL over topics and archives
prepare_spark   the class archive that makes Spark start faster
demo            NSQ and a live pipeline, with made-up visits
demo_events     the visits, published by a process of their own

Internal: no part of the public API (docs/API.md).
"""
