"""Is this nsqd well? What /ping says, and whether anything may be published.

Two things can be wrong: there is too little free space (`disk_space`), which closes the gate for publishers before the
disk is full; or the last write to a disk queue failed, as in the reference. Both end by themselves, see `disk_space`
and `write_probe`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from emberq.base.clock import Clock
from emberq.base.timers import Timers
from emberq.broker.broker import Broker
from emberq.nsqd.disk_space import DiskSpace
from emberq.nsqd.write_probe import WriteProbe


class Health:
    """Watches from `start` to `stop`. Owned by the daemon."""

    def __init__(
        self,
        broker: Broker,
        data_path: Path,
        *,
        min_free_bytes: int,
        clock: Clock,
        timers: Timers,
        run: Callable[[Callable[[], None]], None],
    ) -> None:
        """`run` runs a function soon, off the loop's thread."""
        self._broker = broker
        self._disk_space = DiskSpace(
            data_path, min_free_bytes=min_free_bytes, clock=clock, timers=timers, on_change=self._on_disk_space
        )
        self._probe = WriteProbe(data_path, clock=clock, timers=timers, run=run, on_success=self._on_probe_success)
        broker.on_health = self._on_write

    def start(self) -> None:
        self._disk_space.start()

    def stop(self) -> None:
        self._disk_space.stop()
        self._probe.stop()

    @property
    def problem(self) -> str | None:
        """What is wrong; None if nothing is."""
        return self._disk_space.problem or self._broker.health

    @property
    def refuses_publishing(self) -> bool:
        return self._broker.gate.reason is not None

    def _on_disk_space(self, problem: str | None) -> None:
        self._broker.gate.reason = problem

    def _on_write(self, problem: str | None) -> None:
        if problem is None:
            self._probe.write_succeeded()
        else:
            self._probe.write_failed()

    def _on_probe_success(self) -> None:
        self._broker.health = None
