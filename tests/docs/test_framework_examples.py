"""The examples with web frameworks do what they say, against a real nsqd."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from emberq.embedded import Embedded, EmbeddedThread
from tests.support.caught_signal import catches
from tests.support.waiting import PATIENCE_S, until, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def ask(app: Any, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    """One request, as a server of ASGI hands it to an application: the status, and the JSON of the answer."""
    sent: list[dict[str, Any]] = []
    request = {"type": "http.request", "body": body, "more_body": False}

    async def receive() -> dict[str, Any]:
        return request

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"testserver")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b"", "asgi": {}}
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


async def test_the_fastapi_service_publishes_and_bills_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Embedded() as nsq:
        monkeypatch.setenv("NSQD", nsq.nsqd_tcp_addresses[0])
        service = load("fastapi_orders")
        async with service.app.router.lifespan_context(service.app):
            assert (await ask(service.app, "GET", "/bills/7"))[0] == 404
            placed = await ask(service.app, "POST", "/orders", b'{"id": 7, "prices": [2, 3]}')
            assert placed == (202, {"accepted": 7})
            await until(lambda: bool(service.bills))
            assert await ask(service.app, "GET", "/bills/7") == (200, {"amount": 5})


POST_AN_ORDER = """\
import django

django.setup()
from django.core.management import call_command
from django.test import Client

call_command("migrate", run_syncdb=True, verbosity=0)
answer = Client().post("/orders", {"amount": 5}, content_type="application/json")
print(answer.status_code, answer.content.decode())
"""


def test_the_django_project_publishes_and_bills_an_order(nsq: EmbeddedThread, tmp_path: Path) -> None:
    database = tmp_path / "shop.sqlite3"
    project = EXAMPLES / "django_shop"
    environment = {
        **os.environ,
        "NSQD": nsq.nsqd_tcp_addresses[0],
        "SHOP_DATABASE": str(database),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(project)]),
    }
    posted = subprocess.run(
        [sys.executable, "-c", POST_AN_ORDER], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert posted.stdout == '202 {"accepted": 1}\n', posted.stderr
    command = [sys.executable, str(project / "manage.py"), "bill_orders"]
    consumer = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: is_billed(database) or consumer.poll() is not None)
        wait_until(lambda: catches(consumer.pid, signal.SIGTERM))
        consumer.send_signal(signal.SIGTERM)
        assert consumer.communicate(timeout=PATIENCE_S)[0] == "stopped\n"
        assert consumer.returncode == 0
    finally:
        consumer.kill()


def is_billed(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("select is_billed from shop_order").fetchall() == [(1,)]
