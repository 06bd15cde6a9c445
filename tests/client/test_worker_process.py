"""Processes that handle messages."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.client.error import RemoteError, WorkerCrashedError
from emberq.client.message import MessageSnapshot
from emberq.client.worker_process import WorkerProcess, pickled_handler
from tests.support.process_handlers import obey, write_down


def snapshot(body: bytes) -> MessageSnapshot:
    return MessageSnapshot(b"0123456789abcdef", body, 1, 2, "nsqd:4150")


def start(handler: bytes) -> WorkerProcess:
    worker = WorkerProcess.start(handler)
    worker.wait_until_ready()
    return worker


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    started = start(pickled_handler(obey))
    yield started
    started.stop()


def test_a_worker_handles_one_message_after_the_other(tmp_path: Path) -> None:
    worker = start(pickled_handler(functools.partial(write_down, str(tmp_path))))
    for body in (b"first", b"second"):
        assert worker.is_ready
        worker.handle(snapshot(body))
    worker.stop()
    assert len({(tmp_path / name).read_text() for name in ("first", "second")}) == 1


def test_a_body_of_megabytes_gets_through(worker: WorkerProcess) -> None:
    worker.handle(snapshot(b"x" * 5_000_000))


def test_what_the_handler_raises_is_raised_here_and_tells_where_it_came_from(worker: WorkerProcess) -> None:
    with pytest.raises(KeyError, match="as told") as raised:
        worker.handle(snapshot(b"raise"))
    assert "process_handlers.py" in raised.value.__notes__[0]
    worker.handle(snapshot(b"fine"))


def test_an_exception_that_cannot_travel_sends_its_text(worker: WorkerProcess) -> None:
    with pytest.raises(RemoteError, match="CannotTravel: as told"):
        worker.handle(snapshot(b"raise what cannot travel"))
    worker.handle(snapshot(b"fine"))


@pytest.mark.parametrize(("body", "how"), [(b"exit", "with exit code 7"), (b"be killed", "killed by signal 9")])
def test_a_worker_that_ends_says_how(worker: WorkerProcess, body: bytes, how: str) -> None:
    with pytest.raises(WorkerCrashedError, match=how):
        worker.handle(snapshot(body))
    assert not worker.is_ready


def test_a_worker_that_was_killed_while_it_did_nothing_is_not_ready(worker: WorkerProcess) -> None:
    worker.kill()
    with pytest.raises(WorkerCrashedError, match="killed by signal 9"):
        worker.handle(snapshot(b"fine"))
    assert not worker.is_ready


def test_stopping_and_killing_again_is_harmless(worker: WorkerProcess) -> None:
    worker.stop()
    worker.stop()
    worker.kill()


def test_a_handler_that_cannot_be_imported_there_is_a_crash() -> None:
    with pytest.raises(WorkerCrashedError, match="exit code 1"):
        start(b"not a pickle")


def test_a_handler_that_cannot_be_pickled_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="lambda"):
        pickled_handler(lambda message: None)


def test_a_worker_that_does_not_become_ready_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberq.client.worker_process.START_TIMEOUT_S", 0.001)
    with pytest.raises(WorkerCrashedError, match="killed by signal 9"):
        start(pickled_handler(obey))
