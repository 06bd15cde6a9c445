"""The emberq journal verify command as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emberq.cli.journal import verify_journals
from tests.cli.journals import damage, make_journal
from tests.cli.pseudo_terminal import PseudoTerminal


def test_sound_journals_are_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = make_journal(tmp_path, "a", [b"x" * 1_000_000, b"y"])
    second = make_journal(tmp_path, "b")
    assert verify_journals([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{first}: sound (2 messages, 1.0 MB)",
        f"{second}: sound (0 messages, 0.0 MB)",
    ]


def test_a_loss_is_shown_with_its_place_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_journal(tmp_path, "a", [b"lost"], [b"kept"])
    damage(folder, b"lost")
    assert verify_journals([str(folder)]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{folder}: DAMAGED in 1 place (1 message, 0.0 MB)\n"
    (segment,) = folder.glob("*.log")
    assert captured.err.startswith(f"emberq journal verify: loss: {segment} at 64: ")
    assert captured.err.endswith("offsets 0 to 0 are lost\n")


def test_what_mends_itself_is_a_note_and_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_journal(tmp_path, "a", [b"x"])
    (segment,) = folder.glob("*.log")
    segment.write_bytes(segment.read_bytes() + b"EqB1 and no more")
    assert verify_journals([str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{folder}: sound (1 message, 0.0 MB)\n"
    assert "note: " in captured.err
    assert "torn tail" in captured.err


def test_json_tells_findings_and_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_journal(tmp_path, "a", [b"lost"], [b"kept"])
    damage(folder, b"lost")
    assert verify_journals([str(folder), "--json"]) == 1
    captured = capsys.readouterr()
    finding, result = [json.loads(line) for line in captured.out.splitlines()]
    (segment,) = folder.glob("*.log")
    assert (finding["finding"], finding["file"], finding["position"]) == ("loss", str(segment), 64)
    assert result == {
        "journal": str(folder), "is_sound": False, "notes": 0, "losses": 1,
        "bytes": segment.stat().st_size, "batches": 1, "messages": 1,
    }  # fmt: skip
    assert captured.err == ""


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    folder = make_journal(tmp_path, "orders", *([b"x" * 1_000_000] for _ in range(4)))
    with PseudoTerminal("journal", "verify", str(folder), columns=120) as terminal:
        assert terminal.await_end() == 0
    drawn = terminal.drawn.decode()
    assert "orders.journal (MB)" in drawn
    assert "4/4" in drawn
    assert "sound" in drawn


def test_a_folder_that_is_no_journal_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_journal(tmp_path, "good")
    (tmp_path / "bad.journal").mkdir()
    assert verify_journals([str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"emberq journal verify: {tmp_path / 'bad.journal'} is no journal\n"
    assert "good.journal: sound" in captured.out
