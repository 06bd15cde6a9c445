"""What the daemon keeps on disk, in the layouts of NSQ.

    lock        one process per data folder
    metadata    nsqd.dat: which topics and channels exist
    backend     what a topic or channel expects of a queue behind its memory; the queue that drops everything
    diskqueue   the queue on disk; it stands on
        limits      what it is configured with
        naming      the names of its files
        segment     a data file
        position    the meta file
        recovery    where it goes on after a restart
        sync        fsync, in a thread
    due         the due times of deferred messages across a restart
    atomic      replacing a small file so that a crash leaves the old one or the new one
    errors      the exceptions of all of these

Nothing here knows asyncio or the broker. Only `sync` has a thread, and no other module shares state with it.
"""
