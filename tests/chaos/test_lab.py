"""One visit to each lab, with a fixed seed; `make chaos` comes back to them again and again."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.lab import FILE_KINDS, DamageLab, HandoverLab

KINDS = [kind for kind in FILE_KINDS if kind.name in ("nsqd.dat", "segment", "cursor", "disk queue data")]
"""Those with most of what there is to lose. For each an nsqd is started, which takes a while."""


@pytest.mark.timeout(300)
def test_nsqd_serves_or_refuses_with_a_word_whatever_file_is_damaged(tmp_path: Path) -> None:
    lab = DamageLab(tmp_path / "damage", journaled_batches=20)
    asyncio.run(lab.visit(random.Random(1), kinds=KINDS))
    assert len(lab.findings) == len(KINDS)


def test_a_folder_of_the_go_nsqd_is_taken_over_and_handed_back(tmp_path: Path) -> None:
    lab = HandoverLab(tmp_path / "handover")
    asyncio.run(lab.visit(random.Random(1)))
    assert len(lab.findings) == 1
