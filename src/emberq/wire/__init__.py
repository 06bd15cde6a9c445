"""The NSQ protocol without I/O: bytes in, commands or frames out, for both ends of a connection."""
