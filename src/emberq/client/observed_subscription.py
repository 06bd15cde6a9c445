"""A subscription whose requeues an observer hears of. Consumers without an observer do not use it."""

from __future__ import annotations

from typing import Any

from emberq.client.message import Message
from emberq.client.observer import Observation, tell
from emberq.client.subscription import Subscription


class ObservedSubscription(Subscription):
    """Owned like any other."""

    def __init__(self, *args: Any, observation: Observation, **options: Any) -> None:
        super().__init__(*args, **options)
        self._observation = observation

    def requeue(self, message: Message, *, delay_s: float | None, backoff: bool) -> None:
        super().requeue(message, delay_s=delay_s, backoff=backoff)
        observer, source = self._observation
        tell(observer.requeued, message, source)
