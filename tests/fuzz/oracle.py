"""What must not happen while a target plays an input.

    exception    the target raised: it lets pass what its unit is allowed to raise, so this is something else
    log          a traceback in the log, an exception that no code of an event loop took, or one that Python could not
                 raise; or a text that a client sent and that makes two lines of one
    time         one input took more CPU time than a target may; waiting does not count, so a busy machine is no reason
    memory       one input made the process larger than before by more than a bound, if only for a moment; or all inputs
                 together did so for good

What is found has a place: the innermost line of emberq in the traceback. Findings of one kind at one place are the
same finding.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol

import emberq
from emberq.base.log import LineFormatter

SOURCE = Path(emberq.__file__).parent
MAX_GROWTH_BYTES = 64 * 1024 * 1024
"""What one input of some kB may take for a moment; a body of the largest size is 5 MB, and is held a few times."""
MAX_LEAK_BYTES = 256 * 1024 * 1024
"""By which the process may grow over all inputs; the corpus takes some of it."""
HANG_S = 20.0
"""CPU time after which an input is interrupted."""
MAX_TEXT_CHARACTERS = 4000
_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Verdict(NamedTuple):
    """What was wrong with one input."""

    kind: str
    place: str
    text: str

    @property
    def signature(self) -> tuple[str, str]:
        """What makes two findings the same."""
        return self.kind, self.place


class Playable(Protocol):
    """What the oracle watches."""

    max_cpu_s: float

    def play(self, data: bytes) -> None: ...


class SlowError(AssertionError):
    """Raised by a target that has measured for itself that something took too long."""


class Overtime(KeyboardInterrupt):
    """The input has been played for too long. Event loops, and `except Exception`, let it through."""


class Oracle:
    """Judges inputs. Owned by one fuzzer, in the main thread; to be used within `watching`."""

    def __init__(self) -> None:
        self._logged = _LogWatch()
        self._interrupts = False
        self._peak_bytes = 0
        self._settled_bytes = 0
        """What the process took when it was first asked about leaks."""

    @contextmanager
    def watching(self, *, interrupts: bool = False) -> Iterator[None]:
        """Within, logs are read. With `interrupts`, an endless loop is broken; pytest has its own way for that."""
        root, level = logging.getLogger("emberq"), logging.getLogger("emberq").level
        loggers = [root, logging.getLogger("asyncio")]
        hook, propagates = sys.unraisablehook, [logger.propagate for logger in loggers]
        for logger in loggers:
            logger.addHandler(self._logged)
            logger.propagate = False
        root.setLevel(logging.INFO)
        sys.unraisablehook = self._logged.unraisable
        self._interrupts = interrupts
        if interrupts:
            signal.signal(signal.SIGVTALRM, _interrupt)
        _forget_peak()
        self._peak_bytes = _peak_bytes()
        try:
            yield
        finally:
            sys.unraisablehook = hook
            root.setLevel(level)
            for logger, propagate in zip(loggers, propagates, strict=True):
                logger.removeHandler(self._logged)
                logger.propagate = propagate

    def judge(self, target: Playable, data: bytes) -> Verdict | None:
        """Play an input; what was wrong, or None.

        To ask for CPU time takes long on some machines. It is at most the time that has passed, so it is asked for only
        if that was long, in a second play.
        """
        began_s = time.monotonic()
        verdict = self._played(target, data)
        if verdict is None and time.monotonic() - began_s > target.max_cpu_s:
            began_s = time.thread_time()
            verdict = self._played(target, data)
            took_s = time.thread_time() - began_s
            if verdict is None and took_s > target.max_cpu_s:
                return Verdict("time", "", f"{took_s:.2f} s of CPU time for {len(data)} bytes")
        return verdict

    def _played(self, target: Playable, data: bytes) -> Verdict | None:
        self._logged.verdict = None
        self._set_alarm(HANG_S)
        try:
            target.play(data)
        except Overtime as late:
            return Verdict("time", place_of(late.__traceback__), f"interrupted after {HANG_S:g} s of CPU time")
        except SlowError as slow:
            return Verdict("time", "", str(slow))
        except Exception as error:  # noqa: BLE001 - what a target raises is what is looked for
            return _verdict("exception", error)
        finally:
            self._set_alarm(0)
        return self._logged.verdict or self._growth(data)

    def leak(self) -> Verdict | None:
        """Whether the process keeps growing, with any inputs. To be asked when the target is fresh."""
        gc.collect()
        now_bytes = _figure(b"VmRSS:")
        if not self._settled_bytes:
            self._settled_bytes = now_bytes
        grown_bytes = now_bytes - self._settled_bytes
        if grown_bytes <= MAX_LEAK_BYTES:
            return None
        return Verdict("memory", "leak", f"{grown_bytes >> 20} MB more than at first, and kept")

    def _set_alarm(self, seconds: float) -> None:
        if self._interrupts:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)

    def _growth(self, data: bytes) -> Verdict | None:
        peak_bytes, before_bytes = _peak_bytes(), self._peak_bytes
        self._peak_bytes = peak_bytes
        if peak_bytes - before_bytes <= MAX_GROWTH_BYTES:
            return None
        _forget_peak()
        self._peak_bytes = _peak_bytes()  # so that the same input shows it again
        return Verdict("memory", "", f"{(peak_bytes - before_bytes) >> 20} MB more for {len(data)} bytes")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Overtime


def _peak_bytes() -> int:
    """The most memory that the process had since `_forget_peak`."""
    return _figure(b"VmHWM:")


def _figure(name: bytes) -> int:
    """Bytes, as the system tells them of this process; 0 where it does not."""
    try:
        status = _STATUS.read_bytes()
    except OSError:
        return 0
    start = status.find(name)
    return int(status[start + len(name) :].split(None, 1)[0]) * 1024 if start >= 0 else 0


def _forget_peak() -> None:
    """From here on, the peak is counted anew."""
    with suppress(OSError):
        _FORGET.write_text("5")


def _verdict(kind: str, error: BaseException) -> Verdict:
    text = "".join(traceback.format_exception(error))
    return Verdict(kind, f"{type(error).__name__} at {place_of(error.__traceback__)}", text[-MAX_TEXT_CHARACTERS:])


def place_of(trace: TracebackType | None) -> str:
    """The innermost line of emberq, or of the target if there is none."""
    place = "?"
    for frame, line in traceback.walk_tb(trace):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            place = f"{path.relative_to(SOURCE)}:{line}"
        elif place == "?" or place.startswith("tests/"):
            place = f"tests/{path.name}:{line}"
    return place


class _LogWatch(logging.Handler):
    """Reads all that is logged as the log of a daemon would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.verdict: Verdict | None = None
        self._formatter = LineFormatter("")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._formatter.format(record)
        except Exception as error:  # noqa: BLE001 - a line that cannot be written is a finding too
            self.verdict = _verdict("log", error)
            return
        if record.exc_info and record.exc_info[1] is not None:
            self.verdict = _verdict("log", record.exc_info[1])
        elif "\n" in line or not line.isprintable():
            self.verdict = Verdict("log", f"{record.module}:{record.lineno}", f"one record, two lines: {line!r}")
        elif record.name == "asyncio" and record.levelno >= logging.ERROR:
            self.verdict = Verdict("log", "asyncio", line[:MAX_TEXT_CHARACTERS])

    def unraisable(self, raised: Any) -> None:
        """In place of `sys.unraisablehook`."""
        self.verdict = _verdict("log", raised.exc_value)
