"""Memory in RAM, as the system tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.base import metrics
from emberq.base.metrics import Resident, read_resident

MIB = 1024 * 1024


def test_what_is_held_shows_in_all_own_and_peak() -> None:
    before = read_resident()
    block = bytearray(b"x") * (64 * MIB)
    during = read_resident()
    del block
    assert during.all_bytes - before.all_bytes > 60 * MIB
    assert during.own_bytes - before.own_bytes > 60 * MIB
    assert during.own_bytes <= during.all_bytes <= during.peak_bytes


def test_lines_of_the_status_file_are_read_in_kibibytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_bytes(b"Name:\tnsqd\nVmHWM:\t    3072 kB\nVmRSS:\t    2048 kB\nRssAnon:\t    1024 kB\n")
    monkeypatch.setattr(metrics, "_STATUS", status)
    assert read_resident() == Resident(all_bytes=2 * MIB, own_bytes=MIB, peak_bytes=3 * MIB)


def test_a_line_that_the_kernel_does_not_have_counts_as_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_bytes(b"VmHWM:\t    3072 kB\nVmRSS:\t    2048 kB\n")
    monkeypatch.setattr(metrics, "_STATUS", status)
    assert read_resident() == Resident(all_bytes=2 * MIB, own_bytes=0, peak_bytes=3 * MIB)


def test_without_a_status_file_the_peak_stands_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metrics, "_STATUS", tmp_path / "missing")
    found = read_resident()
    assert MIB < found.all_bytes == found.own_bytes == found.peak_bytes
