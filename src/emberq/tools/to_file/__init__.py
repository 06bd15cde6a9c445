"""nsq_to_file: writes the messages of topics to files, and finishes them once they are safe on the disk.

`options` are the flags, `file_name` makes names, `folder` makes them durable, `output_file` is one open file and
`topic_files` the succession of files of one topic; these know nothing of messages. `topic_archiver` takes what comes
from a consumer to the files of a topic, `archive` runs one archiver for each topic.
"""
