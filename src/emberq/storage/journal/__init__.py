"""The journal: a topic's messages as a log that is kept, in which every message has an offset for ever.

    journal     append, read, locate, trim: what the broker uses
    segment     one file of batches, its sparse index, and the settings of a journal
    scan        walking a segment and trusting no byte
    summary     the .idx file: index entries, latest time, last batch of each producer
    reader      all segments in order, and reading from them
    recovery    which journal this is, and what a crash left undone
    commit      group commit: what is on the disk and what is on its way
    cursor      what one channel has acknowledged, and its file
    cursor_log  the log of its changes, and who writes both
    folder      the folder of one topic: journal and cursors
    inspection  looking from outside: list, verify, dump

A batch itself is `wire.journal_batch`. docs/storage-format.md draws every byte. Nothing here knows asyncio or the
broker, and nothing here has a thread. A `CommitJob` may run in another thread, and shares nothing with the journal; a
cursor file may be written by one.

Internal: no part of the public API (docs/API.md).
"""
