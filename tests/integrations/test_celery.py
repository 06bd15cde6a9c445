"""Celery with NSQ as its broker: a real worker and beat, as processes, and an nsqd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import group
from kombu import pools

from emberq.embedded import EmbeddedThread
from tests.support.embedded import Broker
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
MSG_TIMEOUT_MS = 2000
"""Of the worker for all tests. A shorter one might be over on a busy machine before a task is touched."""
DOOMED_TIMEOUT_MS = 1000
"""Of the worker that is killed, the shortest that nsqd agrees to: so soon its tasks come again."""
MAX_DEFERRAL_S = 1
NS_PER_SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def nsq() -> Iterator[EmbeddedThread]:
    with EmbeddedThread(max_req_timeout_ns=MAX_DEFERRAL_S * NS_PER_SECOND) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="module")
def settings(nsq: EmbeddedThread, folder: Path) -> str:
    return worker_settings(nsq, folder, msg_timeout_ms=MSG_TIMEOUT_MS)


def worker_settings(nsq: EmbeddedThread, folder: Path, *, msg_timeout_ms: int) -> str:
    options = {"msg_timeout_ms": msg_timeout_ms, "nsqd_http_addresses": nsq.nsqd_http_addresses}
    broker = f"nsq://{nsq.nsqd_tcp_addresses[0]}"
    return json.dumps({"broker": broker, "transport_options": options, "folder": str(folder)})


@pytest.fixture(scope="module")
def tasks(settings: str) -> Iterator[Any]:
    """The module of the application, in this process: it publishes tasks and asks for results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBERQ_CELERY_TEST", settings)
        from tests.integrations import celery_app

        yield celery_app
        # What `close` leaves open would look for its nsqd in the background, while other tests run.
        celery_app.app.backend.result_consumer.stop()
        celery_app.app.pool.force_close_all()
        pools.reset()
        celery_app.app.close()
    sys.modules.pop("tests.integrations.celery_app", None)


class Worker:
    """A worker in a process group of its own, with the processes that run its tasks."""

    def __init__(self, name: str, *arguments: str, settings: str, log_path: Path) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.integrations.celery_app", "worker"]
        environment = {**os.environ, "EMBERQ_CELERY_TEST": settings, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.name = f"{name}@test"
        self.log_path = log_path
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "-n", self.name, "-l", "INFO", *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        wait_until(lambda: f"{self.name} ready." in self.log or self.process.poll() is not None)
        assert self.process.poll() is None, self.log

    def kill(self) -> None:
        """End all its processes as a crash of the machine would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def worker(settings: str, folder: Path) -> Iterator[Worker]:
    """A worker with two processes and beat, for all tests."""
    beat = ("-B", "-s", str(folder / "beat"))
    running = Worker("one", "-c2", "-E", "-Q", "celery", *beat, settings=settings, log_path=folder / "one.log")
    try:
        running.wait_until_ready()
        yield running
        assert running.stop() == 0, running.log
    finally:
        if running.process.poll() is None:
            running.kill()


pytestmark = pytest.mark.usefixtures("worker")


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


def test_a_task_is_done_and_its_result_comes_back(tasks: Any) -> None:
    assert tasks.add.delay(2, 3).get(timeout=PATIENCE_S) == 5


def test_many_tasks_are_done(tasks: Any) -> None:
    results = group(tasks.add.s(number, number) for number in range(30))()
    assert results.get(timeout=PATIENCE_S) == [2 * number for number in range(30)]


def test_a_task_publishes_tasks_from_a_forked_process(tasks: Any, worker: Worker) -> None:
    child_id = tasks.parent.delay().get(timeout=PATIENCE_S)
    wait_until(lambda: f"[{child_id}] succeeded" in worker.log)


def test_a_task_is_retried(tasks: Any) -> None:
    assert tasks.stubborn.delay(failures=2).get(timeout=PATIENCE_S) == 2


def test_a_rejected_task_comes_again(tasks: Any) -> None:
    assert tasks.rejected_once.delay().get(timeout=PATIENCE_S) is True


@pytest.mark.parametrize("countdown", [0.5 * MAX_DEFERRAL_S, 1.4 * MAX_DEFERRAL_S])
def test_a_task_with_a_countdown_is_not_begun_earlier(tasks: Any, countdown: float) -> None:
    sent_at = time.time()
    assert tasks.begun_at.apply_async(countdown=countdown).get(timeout=PATIENCE_S) >= sent_at + countdown


def test_a_task_that_takes_longer_than_the_timeout_is_begun_once(
    nsq: EmbeddedThread, tasks: Any, worker: Worker, folder: Path
) -> None:
    result = tasks.slow.delay(99, seconds=1.3 * MSG_TIMEOUT_MS / 1000)
    assert result.get(timeout=PATIENCE_S) == worker.name
    wait_until(lambda: Broker(nsq).counts("celery", "celery").in_flight == 0)
    assert lines(folder, "begun").count("99") == 1


def test_beat_sends_tasks_at_its_times(folder: Path, worker: Worker) -> None:
    wait_until(lambda: len(lines(folder, "ticks")) >= 2)


def test_workers_answer_remote_control(tasks: Any, worker: Worker) -> None:
    control = tasks.app.control
    assert control.ping(timeout=PATIENCE_S, limit=1) == [{worker.name: {"ok": "pong"}}]
    inspect = control.inspect([worker.name], timeout=PATIENCE_S)
    assert "tests.add" in inspect.registered()[worker.name]
    assert [queue["name"] for queue in inspect.active_queues()[worker.name]] == ["celery"]


def test_events_of_workers_are_heard(tasks: Any, worker: Worker) -> None:
    heard: list[str] = []

    def listen() -> None:
        with tasks.app.connection_for_read() as connection:
            receiver = tasks.app.events.Receiver(connection)

            def take(event: dict[str, Any]) -> None:
                heard.append(event["hostname"])
                receiver.should_stop = True

            receiver.handlers["task-succeeded"] = take
            receiver.capture(limit=None, timeout=PATIENCE_S, wakeup=False)

    listener = threading.Thread(target=listen)
    listener.start()
    while listener.is_alive():  # what happens before it listens is not for it
        tasks.add.delay(1, 1).get(timeout=PATIENCE_S)
    listener.join()
    assert worker.name in heard


def test_bytes_that_are_no_task_are_dropped(nsq: EmbeddedThread, tasks: Any, worker: Worker) -> None:
    Broker(nsq).publish("celery", [b"\xff not Kombu's", b'{"body": 1}', b"[]"])
    wait_until(lambda: worker.log.count("Received and deleted unknown message") == 3)
    assert tasks.add.delay(1, 1).get(timeout=PATIENCE_S) == 2


def test_workers_share_a_queue_and_no_task_is_lost_when_one_is_killed(
    nsq: EmbeddedThread, tasks: Any, worker: Worker, folder: Path
) -> None:
    settings = worker_settings(nsq, folder, msg_timeout_ms=DOOMED_TIMEOUT_MS)
    other = Worker("two", "-c2", "-Q", "celery,doomed", settings=settings, log_path=folder / "two.log")
    try:
        other.wait_until_ready()
        shared = group(tasks.slow.s(number, seconds=0.2) for number in range(8))()
        assert set(shared.get(timeout=PATIENCE_S)) == {worker.name, other.name}

        doomed = group(tasks.slow.s(number, hangs_on=other.name).set(queue="doomed") for number in range(100, 104))()
        wait_until(lambda: len([line for line in lines(folder, "begun") if int(line) >= 100]) == 2)
        assert Broker(nsq).counts("doomed", "celery").in_flight == 2  # as many as it has processes
    finally:
        other.kill()
    tasks.app.control.add_consumer("doomed", destination=[worker.name], reply=True, timeout=PATIENCE_S)
    assert set(doomed.get(timeout=PATIENCE_S)) == {worker.name}
    assert {line for line in lines(folder, "done") if int(line) >= 100} == {"100", "101", "102", "103"}
