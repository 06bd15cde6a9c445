"""What the machine is called."""

from __future__ import annotations

import os

from bench import machine


def test_what_the_host_took_only_grows() -> None:
    before_s = machine.stolen_s()
    assert 0 <= before_s <= machine.stolen_s()


def test_a_machine_is_described_by_processor_cores_and_system() -> None:
    processor, cores, system = machine.description().rsplit(", ", 2)
    assert processor == machine.processor() != ""
    assert cores.split()[0] == str(os.cpu_count())
    assert system.startswith(os.uname().sysname)
