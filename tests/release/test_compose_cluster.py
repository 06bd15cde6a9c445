"""The cluster of deploy/compose.yaml, run by its very commands as processes of this machine.

Only what a container would have of its own is replaced: names of hosts, ports, and folders.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from emberq.sync import Consumer, Producer
from tests.support.looking import get_json
from tests.support.waiting import PATIENCE_S, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
HOST = "127.0.0.1"
LISTENING = re.compile(r"\b(TCP|HTTP): listening on 127\.0\.0\.1:(\d+)")
USUAL_PORTS = {
    "nsqd": {"TCP": 4150, "HTTP": 4151},
    "nsqlookupd": {"TCP": 4160, "HTTP": 4161},
    "nsqadmin": {"HTTP": 4171},
}


class Cluster:
    """Daemons by the names of their services, each at ports of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._addresses: dict[tuple[str, int], str] = {}
        """By the name and port that containers use: where it is on this machine."""

    def __getitem__(self, at: tuple[str, int]) -> str:
        return self._addresses[at]

    def start(self, name: str, stack: ExitStack) -> Callable[[], None]:
        """Start a service, and stop it at the end of the stack, which must go well; the function that waits for it."""
        usual = USUAL_PORTS[SERVICES[name]["command"][0]]
        free = [f"--{kind.lower()}-address={HOST}:0" for kind in usual]
        words = [self._here(word, name) for word in SERVICES[name]["command"]]
        (self._folder / name).mkdir()
        log_path = self._folder / f"{name}.log"
        with log_path.open("wb") as log:
            command = (sys.executable, "-m", "emberq.cli.main", *words, *free)
            process = subprocess.Popen(command, stdout=log, stderr=log)

        def stop() -> None:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, log_path.read_text()

        def wait() -> None:
            wait_until(lambda: len(LISTENING.findall(log_path.read_text())) == len(usual) or process.poll() is not None)
            assert process.poll() is None, log_path.read_text()
            found = LISTENING.findall(log_path.read_text())
            self._addresses.update({(name, usual[kind]): f"{HOST}:{port}" for kind, port in found})

        stack.callback(stop)
        return wait

    def _here(self, word: str, name: str) -> str:
        """A word of the command line, as it has to be on this machine."""
        for (host, port), address in self._addresses.items():
            word = word.replace(f"{host}:{port}", address)
        if word.startswith("--broadcast-address="):
            assert word.endswith(f"={name}")
            return f"--broadcast-address={HOST}"
        return word.replace("/data", str(self._folder / name))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    with ExitStack() as stack:
        waiting = dict(SERVICES)
        while waiting:
            ready = [name for name in waiting if not waiting.keys() & waiting[name].get("depends_on", {}).keys()]
            assert ready, f"these wait for each other: {list(waiting)}"
            for wait in [cluster.start(name, stack) for name in ready]:
                wait()
            waiting = {name: service for name, service in waiting.items() if name not in ready}
        yield cluster


def test_both_nsqlookupds_know_all_three_nsqds(cluster: Cluster) -> None:
    for name in ("nsqlookupd-1", "nsqlookupd-2"):
        nodes = f"http://{cluster[name, 4161]}/nodes"
        wait_until(lambda nodes=nodes: len(get_json(nodes)["producers"]) == 3)  # type: ignore[misc]


def test_what_is_published_to_any_nsqd_is_found_through_nsqlookupd(cluster: Cluster) -> None:
    for number in (1, 2, 3):
        with Producer(cluster[f"nsqd-{number}", 4150]) as producer:
            producer.publish("orders", b"%d" % number)
    lookupd = cluster["nsqlookupd-2", 4161]

    def registered_count() -> int:
        return sum("orders" in node["topics"] for node in get_json(f"http://{lookupd}/nodes")["producers"])

    wait_until(lambda: registered_count() == 3)  # a consumer that asked before would ask again in a minute
    bodies: set[bytes] = set()
    with Consumer("orders", "billing", lookupd_addresses=[lookupd]) as consumer:
        while len(bodies) < 3:
            message = consumer.get(timeout_s=PATIENCE_S)
            assert message is not None
            message.finish()
            bodies.add(message.body)
    assert bodies == {b"1", b"2", b"3"}


def test_nsqadmin_sees_the_cluster(cluster: Cluster) -> None:
    admin = f"http://{cluster['nsqadmin', 4171]}/api"
    wait_until(lambda: len(get_json(f"{admin}/nodes")["nodes"]) == 3)


@pytest.mark.parametrize(
    ("manifest", "service", "port"),
    [("nsqd", "nsqd-1", 4151), ("nsqlookupd", "nsqlookupd-1", 4161), ("nsqadmin", "nsqadmin", 4171)],
)
def test_what_kubernetes_asks_is_answered(cluster: Cluster, manifest: str, service: str, port: int) -> None:
    paths = re.findall(r"^ +path: (/.*)$", (DEPLOY / "kubernetes" / f"{manifest}.yaml").read_text(), re.MULTILINE)
    assert len(paths) >= 2
    for path in paths:
        with urllib.request.urlopen(f"http://{cluster[service, port]}{path}", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
