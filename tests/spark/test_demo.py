"""`emberq demo`, stopped while Spark is still starting. (`make test-cluster` stops it at work.)"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emberq.base.child_process import await_end, descendants
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "clickstream.toml"
TIMEOUT_S = 120.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_stop_while_java_starts_leaves_no_process_and_no_noise(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "emberq.cli.demo", str(EXAMPLE), "--count=1000", f"--data-path={data}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        wait_until(lambda: any("java" in name for name in names_below(demo.pid)), timeout_s=TIMEOUT_S)
        below = descendants(demo.pid)
        demo.send_signal(number)
        out, err = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 130
    assert await_end(below, timeout_s=0.0)
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("NSQ is up", "  nsq"))]
    assert lines[:2] == ["emberq demo: starting Spark", "emberq demo: stopping"]
    assert len(lines) == 3
    assert lines[2].endswith(f"everything is kept in {data}")


def names_below(pid: int) -> list[str]:
    """The commands of the processes below one."""
    found = []
    for process in descendants(pid):
        try:
            found.append(Path(f"/proc/{process.pid}/comm").read_text())
        except OSError:
            continue
    return found
