"""The reference pages in docs are those that the settings make."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.reference import main, pages

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def test_the_pages_in_docs_are_up_to_date() -> None:
    in_docs = {path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert in_docs == pages(), "renew them: python docs/reference.py docs/reference"


def test_pages_are_written_into_the_directory_named(tmp_path: Path) -> None:
    assert main([str(tmp_path / "new")]) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "new").iterdir()} == pages()


def test_without_a_directory_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err == "Usage: python docs/reference.py <directory>\n"
