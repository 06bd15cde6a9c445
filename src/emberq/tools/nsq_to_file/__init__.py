"""nsq_to_file: the messages of topics, written to files.

options   flags and file names
files     the files of one topic, written and synced
program   an archiver for each topic; messages are finished when synced

Internal: no part of the public API (docs/API.md).
"""
