"""The emberq journal cat command as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emberq.base.text import format_moment
from emberq.cli.journal import print_messages
from tests.cli.journals import START_NS, damage, make_journal
from tests.cli.pseudo_terminal import PseudoTerminal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_journal(tmp_path, "t", [b"one", b"two"], [b"[bold]three\x1b[2J"], [b"\xff\x00"])


def test_a_pipe_gets_the_bodies_as_they_are(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert print_messages([str(folder)]) == 0
    assert capfdbinary.readouterr().out == b"one\ntwo\n[bold]three\x1b[2J\n\xff\x00\n"


def test_the_data_folder_will_do_if_it_has_one_journal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_messages([str(folder.parent), "-n", "1"]) == 0
    assert capsys.readouterr().out == "one\n"
    other = make_journal(folder.parent, "other")
    assert print_messages([str(folder.parent)]) == 1
    told = capsys.readouterr().err
    assert told == (f"emberq journal cat: there are 2 journals in {folder.parent}\n  Choose one: {other}, {folder}\n")


def test_json_tells_offsets_and_times(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_messages([str(folder), "--json"]) == 0
    first, *_, third, fourth = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first == {"offset": 0, "timestamp_ns": START_NS, "body": "one"}
    assert third["body"] == "[bold]three\x1b[2J"
    assert (fourth["offset"], fourth["body_base64"]) == (3, "/wA=")


def test_a_terminal_gets_lines_in_which_bodies_do_no_harm(folder: Path) -> None:
    with PseudoTerminal("journal", "cat", str(folder), columns=100) as terminal:
        assert terminal.await_end() == 0
    drawn = terminal.drawn.decode()
    assert "2023-11-14T22:13:20.000" in drawn
    assert "[bold]three\\x1b[2J" in drawn
    assert "\\xff\\x00" in drawn


@pytest.mark.parametrize(
    ("flags", "bodies"),
    [
        (["--from", "earliest", "-n", "2"], ["one", "two"]),
        (["--from", "1", "-n", "2"], ["two", "[bold]three\x1b[2J"]),
        (["--from", format_moment(START_NS + 1), "-n", "1"], ["[bold]three\x1b[2J"]),
        (["--from", "99"], []),
    ],
)
def test_it_may_begin_anywhere(
    folder: Path, capsys: pytest.CaptureFixture[str], flags: list[str], bodies: list[str]
) -> None:
    assert print_messages([str(folder), "--json", *flags]) == 0
    assert [json.loads(line)["body"] for line in capsys.readouterr().out.splitlines()] == bodies


def test_messages_that_cannot_be_read_are_told_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(folder, b"one")
    assert print_messages([str(folder), "-n", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "[bold]three\x1b[2J\n"
    assert captured.err.startswith("emberq journal cat: ")


def test_a_folder_that_is_no_journal_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_messages([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"emberq journal cat: no journal in {tmp_path}\n")


@pytest.mark.parametrize("words", [[], ["x", "--from", "yesterday"], ["x", "-n", "0"]])
def test_mistakes_are_told_with_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert print_messages(words) == 2
    assert capsys.readouterr().err.startswith("emberq journal cat: ")
