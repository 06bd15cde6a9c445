"""nsq_to_file: the messages of topics, written to files."""
