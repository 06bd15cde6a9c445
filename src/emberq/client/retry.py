"""How often and for how long to try again: publishing, and connecting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from emberq.client.argument import check_field_types

MAX_DOUBLINGS = 32
"""More would change nothing but the size of the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When to give up on a message that nsqd did not confirm.

    A message is sent again if the connection broke, the answer did not come in time, or nsqd could not store it. nsqd
    may have stored it all the same, so whoever retries may publish twice; `max_attempts=1` never does.
    """

    max_attempts: int = 5
    timeout_s: float = 30.0
    """For all attempts together, and for the wait until any nsqd can be reached."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; the first attempt counts")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconnectDelay:
    """How long to leave an nsqd alone after failures: twice as long each time, up to a limit, with jitter.

    The jitter takes off up to half, so that clients which lost the same nsqd do not all come back at once.
    """

    first_s: float = 0.1
    max_s: float = 15.0

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0 < self.first_s <= self.max_s:
            raise ValueError(f"first_s is {self.first_s} and max_s is {self.max_s}; expected 0 < first_s <= max_s")

    def after(self, failures: int, *, random: Callable[[], float]) -> float:
        """Seconds to wait after so many failures in a row; `random` returns numbers from 0 to 1."""
        doublings = min(failures - 1, MAX_DOUBLINGS)
        longest_s: float = min(self.max_s, self.first_s * 2**doublings)
        return longest_s * (1 - random() / 2)
