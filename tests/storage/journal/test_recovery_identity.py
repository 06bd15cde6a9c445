"""journal.json."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from emberq.storage.error import JournalOpenError
from emberq.storage.journal.recovery import JournalIdentity, identity_now, load, save

MINE = JournalIdentity(UUID("12345678-1234-5678-1234-567812345678"), "2023-11-14T22:13:20Z")


def test_the_file_is_json_for_people(tmp_path: Path) -> None:
    save(tmp_path, MINE)
    assert (tmp_path / "journal.json").read_text() == (
        '{"format":2,"uuid":"12345678-1234-5678-1234-567812345678","created":"2023-11-14T22:13:20Z"}\n'
    )
    assert load(tmp_path) == MINE


def test_a_new_identity_says_when_it_was_made() -> None:
    assert identity_now(MINE.uuid, now_ns=1_700_000_000_123_456_789) == MINE


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format":1}', '{"format":1,"uuid":"zz","created":"x"}'])
def test_a_damaged_file_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "journal.json").write_text(content)
    assert load(tmp_path) is None


@pytest.mark.parametrize("reserved", [-1, 1 << 62, 1 << 63, 10**30])
def test_offsets_that_no_message_can_have_are_damage(tmp_path: Path, reserved: int) -> None:
    save(tmp_path, MINE._replace(reserved=reserved, boot="b"))
    assert load(tmp_path) is None


def test_a_missing_file_says_nothing(tmp_path: Path) -> None:
    assert load(tmp_path) is None


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.json").write_text('{"format":3,"uuid":"12345678-1234-5678-1234-567812345678","created":"x"}')
    with pytest.raises(JournalOpenError, match="format 3"):
        load(tmp_path)
