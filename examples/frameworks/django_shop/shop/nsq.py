"""The producer of this process, for views and everything else that blocks.

Servers such as gunicorn fork their workers, and a producer does not survive a fork: its thread stays in the parent. So
each process makes its own when it publishes for the first time. One is enough for all threads.
"""

import atexit
import os
from functools import lru_cache

from django.conf import settings

from emberq import RetryPolicy
from emberq.sync import Producer


def producer() -> Producer:
    """The one of this process."""
    return _producer_of(os.getpid())


@lru_cache(maxsize=1)
def _producer_of(process_id: int) -> Producer:  # noqa: ARG001 - it is what tells a forked child that it needs another
    made = Producer(settings.NSQD, retry=RetryPolicy(timeout_s=5))
    atexit.register(made.close)
    return made
