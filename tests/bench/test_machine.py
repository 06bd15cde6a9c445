"""What the machine is called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import machine


def test_what_the_host_took_only_grows() -> None:
    before_s = machine.stolen_s()
    assert 0 <= before_s <= machine.stolen_s()


def test_a_machine_is_described_by_processor_cores_and_system() -> None:
    processor, cores, system = machine.description().rsplit(", ", 2)
    assert processor == machine.processor() != ""
    assert cores.split()[0] == str(os.cpu_count())
    assert system.startswith(os.uname().sysname)


@pytest.mark.parametrize(("polling", "expected"), [("0\n", True), ("200000\n", False), (None, False)])
def test_a_machine_halts_at_once_or_looks_for_work_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, polling: str | None, expected: bool
) -> None:
    parameter = tmp_path / "guest_halt_poll_ns"
    if polling is not None:
        parameter.write_text(polling)
    monkeypatch.setattr(machine, "_HALT_POLLING", parameter)
    assert machine.halts_at_once() is expected
