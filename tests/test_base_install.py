"""emberq as `pip install emberq` gives it, without any extra: every command answers, and messages go round.

The wheel is installed into an environment of its own. Its dependencies are copied from the one of the tests, which has
them from the lock file; so nothing is downloaded, and no library of an extra or of the tests is there by accident.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from emberq.cli.main import SUBCOMMANDS
from tests.support.looking import get_json
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LISTENING = re.compile(r"\b(TCP|HTTP): listening on 127\.0\.0\.1:(\d+)")

IMPORT_EVERYTHING = """\
import importlib, pkgutil, emberq

for module in pkgutil.walk_packages(emberq.__path__, "emberq."):
    if module.name not in EXTRAS and not module.name.startswith("emberq.spark."):
        importlib.import_module(module.name)
"""
EXTRAS = {
    "emberq.client.opentelemetry",
    "emberq.client.prometheus",
    "emberq.base.unverified_certificate",
    "emberq.integrations.celery",
    "emberq.integrations.faststream",
    "emberq.pytest_plugin",
    "emberq.spark",
}
"""What is imported only by those who have the library that it is for."""

ROUND_TRIP = """\
import asyncio, sys
from emberq import client, sync

address = sys.argv[1]


async def go_round():
    async with client.Producer(address) as producer:
        await producer.publish("async", b"hello")
    async with client.Consumer("async", "c", nsqd_addresses=[address]) as consumer:
        async for message in consumer:
            message.finish()
            return message.body


with sync.Producer(address) as producer:
    producer.publish("sync", b"world")
with sync.Consumer("sync", "c", nsqd_addresses=[address]) as consumer:
    message = consumer.get(timeout_s=30)
    message.finish()
print(asyncio.run(go_round()).decode(), message.body.decode())
"""


class Install:
    """An environment with emberq, its dependencies, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"

    def run(self, *words: str, typed: str = "", timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run one of its commands to its end."""
        return subprocess.run(
            self._command(words),
            input=typed,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextmanager
    def running(self, *words: str, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
        """One of its commands, until it is told to stop; it has to end in good order."""
        with log_path.open("wb") as log:
            process = subprocess.Popen(self._command(words), env=self.environment, stdout=log, stderr=log)
        try:
            yield process
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, log_path.read_text()
        finally:
            process.kill()
            process.wait()

    @property
    def environment(self) -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def _command(self, words: tuple[str, ...]) -> list[str]:
        return [str(self.bin / words[0]), *words[1:]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Install:
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder / "venv", symlinks=True)
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    for name in needed_by(PROJECT["dependencies"]):
        copy(distribution(name), site_packages)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    wheels = folder / "wheels"
    build = (*pip, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", str(ROOT))
    subprocess.run(build, env=os.environ | {"EMBERQ_PURE": "1"}, check=True)
    (wheel,) = wheels.glob("emberq-*.whl")
    into = f"--python={folder / 'venv' / 'bin' / 'python'}"
    subprocess.run((*pip, into, "install", "--no-deps", "--no-index", str(wheel)), check=True)
    return Install(folder / "venv")


def needed_by(requirements: list[str]) -> set[str]:
    """The names of all distributions that these lead to, without extras."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.name in names or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        names.add(requirement.name)
        waiting += [Requirement(text) for text in distribution(requirement.name).requires or ()]
    return names


def copy(library: Distribution, site_packages: Path) -> None:
    for file in library.files or ():
        if ".." not in file.parts:  # scripts
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(str(library.locate_file(file))), target)


def test_every_module_but_those_of_extras_can_be_imported(base: Install) -> None:
    ended = base.run("python", "-W", "error", "-c", f"EXTRAS = {EXTRAS}\n{IMPORT_EVERYTHING}")
    assert ended.returncode == 0, ended.stderr


def test_the_smoke_test_of_releases_passes(base: Install) -> None:
    ended = base.run("python", str(ROOT / "release/smoke.py"), "--pure", timeout_s=3 * PATIENCE_S)  # many commands
    assert ended.returncode == 0, ended.stderr
    assert f"{len(PROJECT['scripts']) + len(SUBCOMMANDS)} commands answer" in ended.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "t", "--to", "folder"),
        ("demo", str(ROOT / "examples/spark/clickstream.toml")),
        ("pipeline", "validate", str(ROOT / "examples/spark/clickstream.toml")),
        ("pipeline", "run", str(ROOT / "examples/spark/clickstream.toml")),
        ("prepare-spark",),
        ("replay", "t", "--to", "other"),
        ("sql", "SELECT 1"),
    ],
)
def test_a_command_that_needs_spark_says_how_to_get_it(base: Install, words: tuple[str, ...]) -> None:
    ended = base.run("emberq", *words)
    assert ended.returncode == 1
    assert "pip install 'emberq[spark]'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) <= 2


def test_nsqd_says_how_to_get_what_authorization_needs(base: Install, tmp_path: Path) -> None:
    ended = base.run("nsqd", "--auth-http-address=127.0.0.1:1", f"--data-path={tmp_path}")
    assert ended.returncode == 1
    assert "pip install 'emberq[auth]'" in ended.stderr


def test_the_lock_files_add_up_and_nothing_heavy_is_in_the_first() -> None:
    base, spark, dev, bench = (locked(f"requirements{layer}.lock") for layer in ("", "-spark", "-dev", "-bench"))
    assert not base & spark
    assert not (base | spark) & dev
    assert not (base | spark | dev) & bench
    assert needed_by(PROJECT["dependencies"]) <= base
    assert {Requirement(text).name for text in PROJECT["optional-dependencies"]["spark"]} <= spark
    assert "pytest" in dev
    assert {"aio-pika", "nats-py", "redis"} <= bench


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / name).read_text(), re.MULTILINE))


def test_messages_go_round(base: Install, tmp_path: Path) -> None:
    with ExitStack() as stack:

        def start(*words: str) -> dict[str, str]:
            """The addresses at which a daemon listens, by TCP and HTTP."""
            log_path = tmp_path / f"{words[0]}.log"
            process = stack.enter_context(base.running(*words, log_path=log_path))
            count = sum("-address=127.0.0.1:0" in word for word in words)
            wait_until(lambda: len(LISTENING.findall(log_path.read_text())) == count or process.poll() is not None)
            assert process.poll() is None, log_path.read_text()
            return {kind: f"127.0.0.1:{port}" for kind, port in LISTENING.findall(log_path.read_text())}

        free = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
        lookupd = start("nsqlookupd", *free, "--broadcast-address=127.0.0.1")
        nsqd = start(
            *("nsqd", *free, "--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd['TCP']}"),
            f"--data-path={tmp_path}",
        )
        admin = start("nsqadmin", "--http-address=127.0.0.1:0", f"--lookupd-http-address={lookupd['HTTP']}")
        here = f"--nsqd-tcp-address={nsqd['TCP']}"
        api = f"http://{nsqd['HTTP']}"

        post(f"{api}/topic/create?topic=t")
        for channel in ("copy", "post", "file", "tail"):
            post(f"{api}/channel/create?topic=t&channel={channel}")
        assert base.run("to_nsq", "--topic=t", here, typed="one\n").returncode == 0
        assert base.run("emberq", "pub", "t", "two", here).returncode == 0
        assert post(f"{api}/pub?topic=t", b"three") == b"OK"

        source = ("--topic=t", here)
        copy_to = (f"--destination-nsqd-tcp-address={nsqd['TCP']}", "--destination-topic=copied")
        start("nsq_to_nsq", *source, "--channel=copy", *copy_to)
        start("nsq_to_http", *source, "--channel=post", f"--post={api}/pub?topic=posted")
        start("nsq_to_file", *source, "--channel=file", f"--output-dir={tmp_path / 'files'}", "--topic-pattern=^t$")
        tailed = base.run("nsq_tail", *source, "--channel=tail", "--n=3")
        assert sorted(tailed.stdout.split()) == ["one", "three", "two"], tailed.stderr
        wait_until(lambda: message_counts(api) == {"t": 3, "copied": 3, "posted": 3})
        assert "t" in get_json(f"http://{admin['HTTP']}/api/topics")["topics"]
        assert base.run("python", "-c", ROUND_TRIP, nsqd["TCP"]).stdout == "hello world\n"
        wait_until(lambda: is_taken(api, "t", "file"))
    (file,) = (tmp_path / "files").iterdir()
    assert sorted(file.read_text().split()) == ["one", "three", "two"]


def post(url: str, body: bytes = b"") -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST")) as answer:
        found: bytes = answer.read()
        return found


def message_counts(api: str) -> dict[str, int]:
    topics = get_json(f"{api}/stats?format=json")["topics"]
    return {topic["topic_name"]: topic["message_count"] for topic in topics}


def is_taken(api: str, topic: str, channel: str) -> bool:
    """Whether the channel's consumer has all messages."""
    (found,) = get_json(f"{api}/stats?format=json&topic={topic}&channel={channel}")["topics"][0]["channels"]
    return bool(found["message_count"] and not found["depth"] and not found["deferred_count"])
