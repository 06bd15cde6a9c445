"""The emberq command lists and runs its subcommands."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emberq.cli.main import SUBCOMMANDS, is_compiled, main


def test_version_names_emberq_nsq_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    core = "compiled" if is_compiled() else "not compiled"
    expected = f"emberq 0.1.0 (nsq 1.3.0-emberq, python {platform.python_version()}, {core})\n"
    assert capsys.readouterr().out == expected


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = {tuple(line.split(maxsplit=1)) for line in out.splitlines() if line.startswith("  ")}
    assert listed >= {(subcommand.name, subcommand.summary) for subcommand in SUBCOMMANDS}


def test_nothing_asked_is_answered_with_the_usage_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("Usage: emberq <command> [flags]\n")


def test_an_unknown_subcommand_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nsqq"]) == 2
    error = 'emberq: unknown command "nsqq"\n  Did you mean nsqd? emberq --help lists all commands.\n'
    assert capsys.readouterr() == ("", error)


def test_an_unknown_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--versoin"]) == 2
    assert 'unknown flag "--versoin"\n  Did you mean --version? ' in capsys.readouterr().err
    assert main(["--json"]) == 2
    assert capsys.readouterr().err.startswith("Usage: emberq <command> [flags]\n")


def test_a_subcommand_gets_the_words_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nsqd", "--version"]) == 0
    assert capsys.readouterr().out.startswith("nsqd v1.3.0-emberq ")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (
            signal.SIGINT,
            "from emberq.cli.main import Subcommand; Subcommand('slow', 'slow_to_import:main', '').run([])",
        ),
        (
            signal.SIGTERM,
            "from emberq.cli.main import Subcommand; Subcommand('slow', 'slow_to_import:main', '').run([])",
        ),
        (signal.SIGINT, "from emberq.cli.daemons import load; load('slow_to_import', 'Daemon')"),
    ],
)
def test_a_signal_while_a_program_is_imported_ends_it_without_a_traceback(
    tmp_path: Path, number: signal.Signals, code: str
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (-signal.SIGINT, "")
