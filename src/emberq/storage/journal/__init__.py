"""The journal: a topic's messages as a retained log, in which every message has an offset for ever.

    journal     what the broker uses: append, read, locate, trim; it stands on
        config      what it is configured with
        identity    journal.json: which journal this is
        batch       how messages lie on disk: the codec, without I/O
        segment     one file of batches, and writing to it
        segments    all of them in order
        scan        walking through a file of which no byte is trusted
        index       finding an offset or a time in a file without reading all of it
        summary     the .idx file: index and producers of one segment
        producer    the last batch of each producer, by which a repeated one is recognised
        durability  what is on the disk and what is on its way there
        reader      reading, locating, finding a moment
        retention   which segments may go
        recovery    where it goes on after a restart
    commit      group commit: one fdatasync for everything that was appended before it began
    cursor      what one channel has acknowledged, without I/O; it stands on
        offset_set  a set of offsets as ranges
        cursor_file its bytes and its file
    inspection  verify and dump, for people
    survey      which journals there are, and how far their channels have come, for people
    error       the exceptions of all of these

docs/storage-format.md draws every byte. Nothing here knows asyncio or the broker, and nothing here has a thread: a
`SyncJob` is the one thing that may run in another one, and it shares nothing with the journal.
"""
