"""The nsqlookupd command as a user meets it: what it prints and how it exits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

TIME = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"
COMMAND = (sys.executable, "-m", "emberq.cli.main", "nsqlookupd")


def nsqlookupd(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *flags], check=False, capture_output=True, text=True, timeout=30)


def test_version_is_printed_on_standard_output() -> None:
    done = nsqlookupd("--version")
    assert re.fullmatch(r"nsqlookupd v1\.3\.0-emberq \(built w/python3\.\d+\.\d+\S*\)\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_goes_to_standard_output_with_status_0() -> None:
    done = nsqlookupd("-h")
    assert done.stdout.startswith("Usage of nsqlookupd:\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_flag_is_named_with_status_2() -> None:
    done = nsqlookupd("-nope")
    assert done.stderr == "flag provided but not defined: -nope\n  nsqlookupd --help lists all flags.\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        (
            "--tcp-address=/no/port",
            'failed to instantiate nsqlookupd - listen (/no/port) failed - "/no/port" is not of the form host:port',
        ),
        ("--config=/no/file", "failed to load config file /no/file - No such file or directory"),
    ],
)
def test_what_cannot_work_is_one_fatal_line_and_status_1(flag: str, complaint: str) -> None:
    done = nsqlookupd(flag)
    assert re.fullmatch(rf"\[nsqlookupd\] {TIME} FATAL: {re.escape(complaint)}\n", done.stderr)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_0_after_it_said_who_it_is(number: signal.Signals) -> None:
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    with subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "HTTP: listening on" in line:
                process.send_signal(number)
    assert process.returncode == 0, lines
    texts = [re.sub(rf"^\[nsqlookupd\] {TIME} ", "", line).strip() for line in lines]
    assert texts[0].startswith("INFO: nsqlookupd v1.3.0-emberq (built w/python3.")
    assert [text.rsplit(" ", 1)[0] for text in texts[1:]] == [
        "INFO: TCP: listening on",
        "INFO: HTTP: listening on",
        "INFO: TCP: closing",
        "INFO: HTTP: closing",
    ]
