"""The whole benchmark, for a moment, against our own nsqd."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_run_measures_our_nsqd_and_leaves_nothing_behind(tmp_path: Path) -> None:
    results, folders = tmp_path / "results.json", tmp_path / "folders"
    folders.mkdir()
    command = [sys.executable, "-m", "bench", "--quick", "--only", "through", "--messages", "4000"]
    done = subprocess.run(
        [*command, "--json", str(results), "--data-parent", str(folders)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| through | rate" in done.stdout
    measures = {result["measure"]: result["ours"]["median"] for result in json.loads(results.read_text())["results"]}
    assert measures["rate"] > 0
    assert list(folders.iterdir()) == []
