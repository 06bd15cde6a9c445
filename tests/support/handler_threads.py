"""The threads in which handlers run."""

from __future__ import annotations

import threading


def handler_threads() -> set[threading.Thread]:
    """All of this process, be they at work, idle or left behind."""
    return {thread for thread in threading.enumerate() if thread.name == "emberq-handler"}
