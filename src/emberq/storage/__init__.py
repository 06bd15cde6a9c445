"""What nsqd keeps on disk, in the layouts of NSQ where it has one.

    error             everything that can go wrong with the data folder, the journal included
    data_folder       the lock, nsqd.dat, channel-policies.json
    backend           what a topic or channel expects of the queue behind its memory; the one that keeps nothing
    disk_queue        NSQ's disk queue: append, take, roll, delete
    disk_queue_files  its names, records, meta file and due times, and where it goes on after a crash
    disk_queue_sync   one thread that brings all disk queues to the disk
    journal           a topic's messages as a log that is kept

Nothing here knows asyncio or the broker. Positions, offsets, sizes and counts that must hold are asserted before a
write and after a read; what may be wrong in a file is not asserted but reported.

Internal: no part of the public API (docs/API.md).
"""
