"""The nsqadmin command as a user meets it: what it prints and how it exits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from emberq.admin.access.user import parse_hash

TIME = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"
COMMAND = (sys.executable, "-m", "emberq.cli.main", "nsqadmin")
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"


def nsqadmin(*flags: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *flags], check=False, capture_output=True, text=True, timeout=60, input=stdin)


def test_version_is_printed_on_standard_output() -> None:
    done = nsqadmin("--version")
    assert re.fullmatch(r"nsqadmin v1\.3\.0-emberq \(built w/python3\.\d+\.\d+\S*\)\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_goes_to_standard_output_with_status_0() -> None:
    done = nsqadmin("-h")
    assert done.stdout.startswith("Usage of nsqadmin:\n")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_flag_is_named_with_status_2() -> None:
    done = nsqadmin("-nope")
    assert done.stderr == "flag provided but not defined: -nope\n  nsqadmin --help lists all flags.\n"
    assert done.returncode == 2


@pytest.mark.conformance(230, 231)
@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        ([LOOKUPD, "--nsqd-http-address=b:1"], "use --nsqd-http-address or --lookupd-http-address not both"),
        (
            [LOOKUPD, "--allow-config-from-cidr=x"],
            "failed to parse --allow-config-from-cidr (x) - invalid CIDR address: x",
        ),
        ([LOOKUPD, "--user-file=/no/file"], "failed to read --user-file (/no/file) - No such file or directory"),
    ],
)
def test_what_cannot_work_is_one_fatal_line_and_status_1(flags: list[str], complaint: str) -> None:
    done = nsqadmin("--log-level=fatal", *flags)
    text = re.escape(f"failed to instantiate nsqadmin - {complaint}")
    assert re.fullmatch(rf"\[nsqadmin\] {TIME} FATAL: {text}\n", done.stderr)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_password_is_hashed() -> None:
    done = nsqadmin("--hash-password", stdin="correct horse\n")
    assert parse_hash(done.stdout.strip()).matches("correct horse")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_empty_password_is_not() -> None:
    done = nsqadmin("-hash-password", stdin="\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "a password cannot be empty\n")


def test_a_signal_ends_it_with_status_0_after_it_said_who_it_is() -> None:
    flags = [LOOKUPD, "--http-address=127.0.0.1:0"]
    with subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "HTTP: listening on 127.0.0.1:" in line:
                break
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        lines += process.stderr.readlines()
        assert process.wait(30) == 0
    assert "INFO: nsqadmin v1.3.0-emberq" in lines[0]
    assert "HTTP: closing 127.0.0.1:" in lines[-1]
