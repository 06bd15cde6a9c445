"""Completion, in the shells themselves where they are installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from emberq.cli.catalog import catalog
from emberq.cli.completion import SHELLS, main
from tests.support.command import require_command
from tests.support.waiting import PATIENCE_S

ROOT = catalog()


def shell(name: str, script: str) -> list[str]:
    """The lines that a shell prints."""
    require_command(name)
    done = subprocess.run([name, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for name, make in SHELLS.items():
        (folder / name).write_text(make(ROOT))
    return folder


def completed_by_bash(scripts: Path, *lines: str) -> list[list[str]]:
    """What bash offers at the end of each line. A line is split at `=`, as bash itself does."""
    calls = []
    for line in lines:
        words = line.replace("=", " = ") + ('""' if line.endswith(" ") else "")
        calls.append(f"COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMPREPLY=()")
        calls.append('_emberq; echo "${COMPREPLY[@]}"')
    return [line.split() for line in shell("bash", "\n".join([f"source {scripts / 'bash'}", *calls]))]


def test_bash_completes_commands_flags_and_values(scripts: Path) -> None:
    commands, below, flags, values, with_equals, command, program = completed_by_bash(
        scripts,
        "emberq jo",
        "emberq journal ",
        "emberq pub orders --ra",
        "emberq top --sort de",
        "emberq top --sort=cl",
        "emberq --json channel pa",
        "nsqd --msg-tim",
    )
    assert commands == ["journal"]
    assert below == ["ls", "cat", "verify", "seek"]
    assert flags == ["--rate"]
    assert values == ["depth"] or set(values) == {"depth", "deferred"}
    assert with_equals == ["clients"]
    assert command == ["pause"]
    assert program == ["--msg-timeout"]


def test_bash_offers_files_where_a_file_is_wanted_and_nothing_for_other_values(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").touch()
    files, nothing = completed_by_bash(scripts, f"emberq pub t --file {tmp_path}/or", "emberq pub t --rate ")
    assert files == [f"{tmp_path}/orders.jsonl"]
    assert nothing == []


def test_bash_knows_the_function_for_every_program(scripts: Path) -> None:
    known = shell("bash", f"source {scripts / 'bash'}; complete -p emberq nsqd nsq_to_file")
    assert [line.split()[-1] for line in known] == ["emberq", "nsqd", "nsq_to_file"]


def test_zsh_can_read_its_script(scripts: Path) -> None:
    assert shell("zsh", f"zsh -n {scripts / 'zsh'}") == []


def test_fish_completes_commands_flags_and_values(scripts: Path) -> None:
    script = f"source {scripts / 'fish'}; complete -C 'emberq journal '; complete -C 'emberq pub t --ra'"
    offered = [line.split("\t")[0] for line in shell("fish", script)]
    assert {"ls", "cat", "verify", "seek", "--rate"} <= set(offered)


@pytest.mark.parametrize("name", SHELLS)
def test_every_script_has_every_command_and_flag(scripts: Path, name: str) -> None:
    script = (scripts / name).read_text()
    for entry in ROOT:
        assert entry.words[-1] in script
        for flag in entry.flags:
            assert flag.names[-1].lstrip("-") in script


def test_the_command_writes_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bash"]) == 0
    assert capsys.readouterr().out == SHELLS["bash"](ROOT)
    assert main(["bash", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shell"] == "bash"
    assert main(["tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
