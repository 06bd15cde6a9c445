"""The nsqd command as a user meets it: what it prints and how it exits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TIME = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"


def nsqd(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "emberq.cli.main", "nsqd", *flags]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


def test_version_is_printed_on_standard_output() -> None:
    done = nsqd("--version")
    assert re.fullmatch(r"nsqd v1\.3\.0-emberq \(built w/python3\.\d+\.\d+\S*\)\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--max-deflate-level=10", "failed to instantiate nsqd - --max-deflate-level must be [1,9]"),
        ("--node-id=1024", "failed to instantiate nsqd - --node-id must be [0,1024)"),
        ("--mem-queue-size=-1", "failed to instantiate nsqd - --mem-queue-size must be at least 0, not -1"),
        ("--config=/no/file", "failed to load config file /no/file - No such file or directory"),
    ],
)
def test_what_cannot_work_is_one_fatal_line_and_status_1(flag: str, complaint: str) -> None:
    done = nsqd(flag)
    assert re.fullmatch(rf"\[nsqd\] {TIME} FATAL: {re.escape(complaint)}\n", done.stderr)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_data_path_that_does_not_exist_is_one_fatal_line_and_status_1(tmp_path: Path) -> None:
    done = nsqd(f"--data-path={tmp_path}/missing", "--tcp-address=127.0.0.1:0", "--http-address=")
    *_, last = done.stderr.splitlines()
    assert re.fullmatch(rf"\[nsqd\] {TIME} FATAL: failed to instantiate nsqd - failed to lock data-path: .*", last)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_0_after_it_said_who_it_is(tmp_path: Path, number: signal.Signals) -> None:
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=", f"--data-path={tmp_path}", "--node-id=5"]
    command = [sys.executable, "-m", "emberq.cli.main", "nsqd", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "TCP: listening on" in line:
                process.send_signal(number)
                process.send_signal(number)
    assert process.returncode == 0, lines
    texts = [re.sub(rf"^\[nsqd\] {TIME} ", "", line).strip() for line in lines]
    assert texts[0].startswith("INFO: nsqd v1.3.0-emberq (built w/python3.")
    assert texts[1] == "INFO: ID: 5"
    assert texts[-1] == "INFO: NSQ: bye"
