"""A fixed slice of what `make fuzz` does: the corpora, and for each target some mutations that are the same each time.

Without guidance: the slice is to be short, and coverage is measured by others meanwhile.
"""

from __future__ import annotations

import pytest

from tests.fuzz.engine import CORPUS, Fuzzer, kept_inputs
from tests.fuzz.oracle import Oracle
from tests.fuzz.targets import TARGETS

MAX_CORPUS_BYTES = 50_000


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_the_slice_is_a_finding(name: str) -> None:
    target, oracle = TARGETS[name](), Oracle()
    with oracle.watching(), target.opened():
        fuzzer = Fuzzer(target, oracle, seed=1)
        fuzzer.load([*target.seeds(), *kept_inputs(name)])
        *_, score = fuzzer.run(count=target.slice_count)
    assert [(finding.data, *finding.verdict) for finding in score.findings] == []


def test_a_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


def test_the_corpora_stay_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= MAX_CORPUS_BYTES
