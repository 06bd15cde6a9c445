"""The emberq journal command lists and runs its subcommands."""

from __future__ import annotations

import pytest

from emberq.cli import main as emberq
from emberq.cli.journal import SUBCOMMANDS, main


def test_help_lists_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert emberq.main(["journal", "--help"]) == 0
    out = capsys.readouterr().out
    listed = {tuple(line.split(maxsplit=1)) for line in out.splitlines() if line.startswith("  ")}
    assert listed == {(subcommand.name, subcommand.summary) for subcommand in SUBCOMMANDS}


@pytest.mark.parametrize("subcommand", SUBCOMMANDS, ids=lambda subcommand: subcommand.name)
def test_every_subcommand_explains_itself(subcommand: emberq.Subcommand, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([subcommand.name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: emberq journal {subcommand.name} ")


def test_nothing_asked_is_answered_with_the_usage_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("Usage: emberq journal <command> [flags]\n")


def test_an_unknown_subcommand_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm"]) == 2
    assert capsys.readouterr().err.startswith('emberq journal: unknown command "rm"\n')
