"""nsqlookupd, nsqd and nsqadmin as processes, run by the very files of examples/secure.

Only what a test cannot have is changed in a copy of them: the folders, the host, and the ports (any free ones).
The certificates are made by the script that lies beside the files.
"""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

from tests.support.fork_server import ForkedProcess, run_forked_text
from tests.support.http_client import Answer
from tests.support.waiting import PATIENCE_S, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "secure"
HOST = "127.0.0.1"
LISTENING = re.compile(r"\b(TCP|HTTPS?): listening on 127\.0\.0\.1:(\d+)")


@dataclass
class ClosedCluster:
    """Where the daemons are, and what opens them."""

    folder: Path
    """Of certificates, secrets and configuration files."""
    ports: dict[tuple[str, str], int] = field(default_factory=dict)
    """By daemon and listener: `("nsqd", "HTTPS")`."""
    logs: dict[str, Path] = field(default_factory=dict)

    @property
    def secret(self) -> str:
        return (self.folder / "http.secret").read_text().strip()

    def context(self, *, shows_certificate: bool = True) -> ssl.SSLContext:
        """A client that trusts the authority, and shows a certificate of it or none."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if shows_certificate:
            context.load_cert_chain(self.folder / "client.pem", self.folder / "client.key")
        return context

    def address(self, daemon: str, listener: str) -> tuple[str, int]:
        return HOST, self.ports[daemon, listener]

    def ask(
        self,
        daemon: str,
        method: str,
        target: str,
        *,
        listener: str = "HTTPS",
        shows_certificate: bool = True,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        """One request. Without `headers` it shows the secret."""
        with self.asking(daemon, listener=listener, shows_certificate=shows_certificate, headers=headers) as ask:
            return ask(method, target, body)

    @contextmanager
    def asking(
        self,
        daemon: str,
        *,
        listener: str = "HTTPS",
        shows_certificate: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Callable[[str, str, bytes], Answer]]:
        """Requests on one connection, which is opened again when the daemon has closed it."""
        host, port = self.address(daemon, listener)
        if listener == "HTTP":
            connection = HTTPConnection(host, port, timeout=PATIENCE_S)
        else:
            context = self.context(shows_certificate=shows_certificate)
            connection = HTTPSConnection(host, port, timeout=PATIENCE_S, context=context)
        shown = {"Authorization": f"Bearer {self.secret}"} if headers is None else headers

        def ask(method: str, target: str, body: bytes) -> Answer:
            connection.request(method, target, body, dict(shown))
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())

        try:
            yield ask
        finally:
            connection.close()

    def config(self, daemon: str) -> Path:
        """The copy of a configuration file, with the folders, host and ports of this cluster."""
        text = (EXAMPLE / f"{daemon}.cfg").read_text()
        text = text.replace("/etc/nsq", str(self.folder)).replace("/var/lib/nsq", str(self.folder / "data"))
        text = re.sub(r"0\.0\.0\.0:\d+", f"{HOST}:0", text).replace("nsq.example", HOST)
        for listener, usual in (("TCP", 4160), ("HTTPS", 4161)):
            port = self.ports.get(("nsqlookupd", listener), usual)
            text = text.replace(f"{HOST}:{usual}", f"{HOST}:{port}")
        path = self.folder / f"{daemon}.cfg"
        path.write_text(text)
        return path

    def run_to_its_end(self, daemon: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """The daemon with its configuration file and a flag that ends it at once."""
        return run_forked_text(daemon, f"--config={self.config(daemon)}", *flags)

    @contextmanager
    def running(self, daemon: str, *listeners: str, flags: Sequence[str] = ()) -> Iterator[None]:
        """The daemon, until it is told to stop."""
        log_path = self.logs[daemon] = self.folder / f"{daemon}.log"
        with log_path.open("wb") as log:
            process = ForkedProcess(daemon, f"--config={self.config(daemon)}", *flags, stdout=log, stderr=log)
        try:
            wait_until(lambda: process.poll() is not None or set(listeners) <= set(self._listening(daemon)))
            assert process.poll() is None, log_path.read_text()
            for listener, port in self._listening(daemon).items():
                self.ports[daemon, listener] = int(port)
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
        assert process.returncode == 0, log_path.read_text()
        assert "Traceback" not in log_path.read_text()

    def _listening(self, daemon: str) -> dict[str, str]:
        return dict(LISTENING.findall(self.logs[daemon].read_text()))


def prepared(folder: Path) -> ClosedCluster:
    """A cluster that has its files, and whose daemons do not run."""
    script = [str(EXAMPLE / "make-certificates"), str(folder), "localhost", HOST]
    subprocess.run(script, capture_output=True, timeout=PATIENCE_S, check=True)
    (folder / "data").mkdir()
    return ClosedCluster(folder)


@contextmanager
def closed_cluster(folder: Path, *nsqd_flags: str) -> Iterator[ClosedCluster]:
    """A cluster whose nsqd has registered. The flags close nothing that the files leave open."""
    cluster = prepared(folder)
    with ExitStack() as running:
        running.enter_context(cluster.running("nsqlookupd", "TCP", "HTTPS"))
        running.enter_context(cluster.running("nsqd", "TCP", "HTTP", "HTTPS", flags=nsqd_flags))
        running.enter_context(cluster.running("nsqadmin", "HTTPS"))
        wait_until(lambda: "registered with nsqlookupd" in cluster.logs["nsqd"].read_text())
        yield cluster
