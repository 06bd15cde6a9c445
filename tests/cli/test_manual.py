"""Man pages, read by man itself where it is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from emberq.cli.catalog import catalog
from emberq.cli.manual import main, man_page, page_name
from tests.support.command import require_command
from tests.support.waiting import PATIENCE_S

ROOT = catalog()


def read_by_man(*pages: Path) -> str:
    require_command("man")
    environment = os.environ | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8", "PAGER": "cat", "MANROFFOPT": "-c"}
    done = subprocess.run(
        ["man", "--warnings", "-l", *map(str, pages)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man") / "man1"
    assert main(["--to", str(folder)]) == 0
    return folder


def test_every_command_has_a_page(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {f"{page_name(entry)}.1" for entry in ROOT}
    assert (folder / "emberq-journal-ls.1").is_file()
    assert (folder / "nsqd.1").is_file()


def test_man_has_nothing_to_complain_about(folder: Path) -> None:
    shown = read_by_man(folder / "emberq-channel-pause.1", folder / "nsqd.1")
    assert "EMBERQ-CHANNEL-PAUSE(1)" in shown
    assert "--max-msg-size" in shown


def test_groff_has_nothing_to_complain_about_in_any_page(folder: Path) -> None:
    require_command("groff")
    command = ["groff", "-man", "-Tutf8", "-ww", "-z", *sorted(map(str, folder.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_shows_flags_arguments_and_examples(folder: Path) -> None:
    shown = " ".join(read_by_man(folder / "emberq-pub.1").split())
    assert "emberq-pub - publish messages: words, lines or a file" in shown
    assert "emberq pub [FLAGS] TOPIC [BODY...]" in shown
    assert "--rate N publish at most N messages a second" in shown
    assert """emberq pub orders '{"id": 1}' '{"id": 2}'""" in shown
    assert "nsqd(1)" in shown


def test_one_page_is_written_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "ls"]) == 0
    entry = next(entry for entry in ROOT if entry.name == "emberq journal ls")
    assert capsys.readouterr().out == man_page(entry, ROOT)
    assert main(["jornal"]) == 2
    assert "there is no command emberq jornal" in capsys.readouterr().err


def test_what_looks_like_a_request_of_roff_is_text() -> None:
    entry = next(entry for entry in ROOT if entry.name == "emberq nsqd")
    assert not [line for line in man_page(entry, ROOT).splitlines() if line.startswith("'")]


def test_a_folder_that_cannot_be_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["--to", str(tmp_path / "file" / "man1")]) == 1
    assert "--to: " in capsys.readouterr().err
