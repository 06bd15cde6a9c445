"""The emberq journal ls command as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emberq.cli.journal import list_journals
from tests.cli.journals import make_journal
from tests.cli.pseudo_terminal import PseudoTerminal


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_pipe_gets_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_journal(tmp_path, "orders", [b"a", b"b"], [b"c"], channels={"mail": 1, "bills": 3})
    assert list_journals([str(tmp_path)]) == 0
    (shown,) = lines(capsys)
    (segment,) = folder.glob("*.log")
    assert shown == {
        "topic": "orders",
        "path": str(folder),
        "uuid": json.loads((folder / "journal.json").read_text())["uuid"],
        "created": "2023-11-14T22:13:20Z",
        "first_offset": 0,
        "next_offset": 3,
        "bytes": segment.stat().st_size,
        "segments": 1,
        "channels": [{"channel": "bills", "low_water": 3, "lag": 0}, {"channel": "mail", "low_water": 1, "lag": 2}],
    }


def test_without_a_path_journals_are_looked_for_in_and_below_this_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_journal(tmp_path / "emberq-data" / "nsqd-0", "a")
    make_journal(tmp_path / "emberq-data" / "nsqd-1", "b")
    for folder, topics in ((".", ["a", "b"]), ("emberq-data", ["a", "b"]), ("emberq-data/nsqd-0/a.journal", ["a"])):
        monkeypatch.chdir(tmp_path / folder)
        assert list_journals([]) == 0
        assert [line["topic"] for line in lines(capsys)] == topics


def test_a_terminal_gets_a_table(tmp_path: Path) -> None:
    make_journal(tmp_path, "orders", [b"a", b"b"], channels={"mail": 1, "bills": 2})
    make_journal(tmp_path, "quiet")
    with PseudoTerminal("journal", "ls", str(tmp_path), columns=120) as terminal:
        assert terminal.await_end() == 0
    drawn = terminal.drawn.decode()
    for shown in ("TOPIC", "orders", "mail", "bills", "quiet", "LAG"):
        assert shown in drawn


def test_a_folder_without_journals_is_told_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_journals([str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"emberq journal ls: no journal in {tmp_path}\n")
    assert "nsqd --journal" in told


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_journals([str(tmp_path / "none")]) == 1
    assert "none: no such file or directory" in capsys.readouterr().err


def test_a_journal_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_journal(tmp_path, "good")
    (tmp_path / "bad.journal").mkdir()
    assert list_journals([str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert [json.loads(line)["topic"] for line in captured.out.splitlines()] == ["good"]
    assert captured.err == f"emberq journal ls: {tmp_path / 'bad.journal'} is no journal\n"
