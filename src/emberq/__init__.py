"""emberq: NSQ, the realtime message queue, in Python."""

__version__ = "0.1.0"

NSQ_VERSION = "1.3.0-emberq"
"""The level of NSQ our daemons are compatible with, shown wherever NSQ shows its version (clients compare it)."""
