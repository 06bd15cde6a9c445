"""What the machine is called."""

from __future__ import annotations

import os

from bench import machine


def test_a_machine_is_described_by_processor_cores_and_system() -> None:
    processor, cores, system = machine.description().rsplit(", ", 2)
    assert processor == machine.processor() != ""
    assert cores.split()[0] == str(os.cpu_count())
    assert system.startswith(os.uname().sysname)
