"""A PostgreSQL of its own for tests, which goes when they are done.

PostgreSQL does not run as root, so there its programs run as the user `postgres`, who owns the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.support.held_port import hold_port

OWNER = "postgres"
USER = "shop"
PASSWORD = "open-sesame-4711"
PASSWORD_VARIABLE = "EMBERQ_TEST_DATABASE_PASSWORD"
TIMEOUT_S = 120.0


def programs() -> Path:
    """The folder of Debian's newest PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    assert found, "PostgreSQL is not installed: apt-get install postgresql libpostgresql-jdbc-java"
    return found[-1]


class PostgresServer:
    """Runs within `with`. Connections over TCP need the password."""

    def __init__(self) -> None:
        self._programs = programs()
        self._running = ExitStack()
        self._folder = Path()
        self.port = 0

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="emberq-postgres-"))
        self._running.callback(shutil.rmtree, self._folder, ignore_errors=True)
        password_file = self._folder / "password"
        password_file.write_text(PASSWORD)
        if os.getuid() == 0:
            for path in (self._folder, password_file):
                shutil.chown(path, OWNER)
        self._run("initdb", "--auth=scram-sha-256", f"--username={USER}", f"--pwfile={password_file}", "--no-sync")
        self.port = self._running.enter_context(hold_port())
        self.start()
        self._running.callback(self.stop)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        """For Java's driver."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it answers. It need not survive a crash of the machine."""
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "start", "-w", f"--log={self._folder}/log", f"--options={settings}")

    def stop(self) -> None:
        """As a crash would."""
        self._run("pg_ctl", "stop", "--mode=immediate")

    def rows(self, sql: str) -> list[tuple[str, ...]]:
        """What psql shows for a statement."""
        connect = [str(self._programs / "psql"), "--host=127.0.0.1", f"--port={self.port}", f"--username={USER}"]
        done = subprocess.run(
            [*connect, "--dbname=postgres", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-qAt", "-F", "\t", "-c", sql],
            env={**os.environ, "PGPASSWORD": PASSWORD},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [tuple(line.split("\t")) for line in done.stdout.splitlines()]

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), f"--pgdata={self._folder}/data", *arguments]
        as_owner = ["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups"] if os.getuid() == 0 else []
        # Its output goes to no pipe: the server would keep that open.
        with (self._folder / "programs.log").open("ab") as log:
            done = subprocess.run(
                [*as_owner, *command], cwd="/", stdout=log, stderr=log, timeout=TIMEOUT_S, check=False
            )
        assert done.returncode == 0, (self._folder / "programs.log").read_text()
