"""The fuzzer finds what it should: by guidance, by each sense of the oracle, and the same again by the same seed."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from emberq.wire.line import CommandLimits
from quality.blocks import MarkingLoader
from tests.fuzz import engine, stage
from tests.fuzz.__main__ import main
from tests.fuzz.engine import Fuzzer, Reached, Score, Target, minimised
from tests.fuzz.mutation import Mutator
from tests.fuzz.oracle import Oracle, Verdict
from tests.fuzz.run import LastInput, Order, run_all
from tests.fuzz.targets_daemon import LookupdTarget

log = logging.getLogger("emberq.fuzz")


PLANTED = """
def play(data):
    first, _, second = data.partition(b" ")
    if first.isdigit():
        if second.isdigit() and second > b"70":
            raise ValueError("planted")
"""


class Planted(Target):
    """Fails for two numbers that are right, one behind the other: without guidance both together are hardly found."""

    name = "planted"
    modules = ("planted.py",)
    tokens = (b"7", b" ")

    def __init__(self, unit: ModuleType) -> None:
        self._unit = unit

    def seeds(self) -> Iterable[bytes]:
        return [b"!"]

    def play(self, data: bytes) -> None:
        self._unit.play(data)


class Failing(Target):
    """Does what it is told with every input."""

    name = "failing"
    modules = ()
    max_cpu_s = 0.2

    def __init__(self, fault: Callable[[], object]) -> None:
        self._fault = fault

    def seeds(self) -> Iterable[bytes]:
        return [b""]

    def play(self, data: bytes) -> None:
        self._fault()


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with the module that `Planted` plays to."""
    (tmp_path / "planted.py").write_text(PLANTED)
    return tmp_path


def fuzzed(folder: Path, *, seed: int, count: int = 3000) -> Score:
    loader = MarkingLoader("planted", str(folder / "planted.py"))
    unit = module_from_spec(ModuleSpec("planted", loader))
    loader.exec_module(unit)
    target, oracle, reached = Planted(unit), Oracle(), Reached(Planted.modules, source=folder)
    with oracle.watching():
        fuzzer = Fuzzer(target, oracle, seed=seed, reached=reached)
        fuzzer.load(target.seeds())
        *_, score = fuzzer.run(count=count)
    return score


def verdict_on(fault: Callable[[], object]) -> Verdict | None:
    oracle = Oracle()
    with oracle.watching():
        return oracle.judge(Failing(fault), b"x")


def test_a_planted_fault_is_found_and_made_short(planted: Path) -> None:
    score = fuzzed(planted, seed=1)
    (finding,) = score.findings
    assert finding.is_repeatable
    assert finding.verdict.kind == "exception"
    assert finding.verdict.place.startswith("ValueError at ")
    assert len(finding.data) < 100
    assert len(score.kept) > 2
    assert score.blocks > 0


def test_a_seed_repeats_the_run(planted: Path) -> None:
    first, second = fuzzed(planted, seed=3, count=500), fuzzed(planted, seed=3, count=500)
    assert first.kept == second.kept
    assert fuzzed(planted, seed=4, count=500).kept != first.kept


def _busy(seconds: float = 0.3) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def _log_a_traceback() -> None:
    try:
        CommandLimits(nothing=1)  # type: ignore[call-arg]
    except TypeError:
        log.exception("failed")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("exception", lambda: json.loads("{")),
        ("log", _log_a_traceback),
        ("log", lambda: log.warning("%d", "no number")),
        ("time", _busy),
        ("memory", lambda: b"x" * (200 << 20)),
    ],
)
def test_the_oracle_objects_to(kind: str, fault: Callable[[], object]) -> None:
    verdict = verdict_on(fault)
    assert verdict is not None
    assert verdict.kind == kind


def test_the_oracle_lets_pass_what_is_right() -> None:
    assert verdict_on(lambda: log.error("a client sent %r", b"\n")) is None


def test_the_log_is_left_as_it_was() -> None:
    logger = logging.getLogger("emberq")
    before = (list(logger.handlers), logger.level, logger.propagate)
    verdict_on(lambda: None)
    assert (list(logger.handlers), logger.level, logger.propagate) == before


def test_what_fails_is_made_as_short_as_it_can_be() -> None:
    assert minimised(b"some text with a # and a ! in it", lambda data: b"#" in data and b"!" in data) == b"#!"


def test_mutations_follow_from_the_seed_and_keep_to_the_size() -> None:
    made = [
        [mutator.mutate(b'x\0\0\0\x0c{"a":[1,{}]}', b"other") for _ in range(500)]
        for mutator in (Mutator(random.Random(5), tokens=[b"token"], max_bytes=40) for _ in range(2))
    ]
    assert made[0] == made[1]
    assert max(map(len, made[0])) == 40
    assert any(b"token" in data for data in made[0])
    followed = [
        data for data in made[0] if data[4:5] != b"\x0c" and data[:5] == b"x" + struct.pack(">i", len(data) - 5)
    ]
    assert any(data[5:6] == b"{" for data in followed)  # the size has followed the document


def test_a_run_is_guided_shows_its_score_and_keeps_its_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--minutes", "0.02", "--seed", "1", "--only", "identify", "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "SEED=1" in shown
    assert "findings 0" in shown
    assert re.search("blocks +[1-9]", shown)
    assert list((tmp_path / "corpus" / "identify").iterdir())
    assert engine.kept_inputs("identify", tmp_path / "corpus")


def test_a_finding_can_be_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mpub-0123456789ab"
    path.write_bytes(b"\0\0\0\x01")
    assert main(["--again", str(path)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_the_input_that_ends_the_process_is_a_finding(tmp_path: Path) -> None:
    order = Order("mpub", 1, 1.0, tmp_path)
    LastInput(tmp_path / "last" / "mpub").note(b"deadly")
    with mock.patch("tests.fuzz.run.ProcessPoolExecutor.submit", side_effect=BrokenProcessPool):
        (score,) = run_all([order], jobs=1)
    (finding,) = score.findings
    assert (finding.data, finding.verdict.kind) == (b"deadly", "crash")
    assert [path.read_bytes() for path in (tmp_path / "findings").glob("mpub-*") if not path.suffix] == [b"deadly"]


def test_a_bystander_that_waits_is_a_finding() -> None:
    target, oracle = SlowLookupd(), Oracle()
    with oracle.watching(), target.opened():
        verdict = oracle.judge(target, b"  V1PING\n")
    assert verdict is not None
    assert (verdict.kind, "bystander" in verdict.text) == ("time", True)


class SlowLookupd(LookupdTarget):
    """An nsqlookupd that computes for a while before it serves the bystander."""

    async def bystand(self) -> None:
        _busy(0.6)
        await super().bystand()


@pytest.mark.parametrize(("times", "is_finding"), [(1, False), (2, True)])
def test_a_bystander_that_gets_no_answer_twice_is_a_finding(
    times: int, is_finding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PATIENCE_S", 1.0)
    monkeypatch.setattr(stage, "LAST_PATIENCE_S", 1.0)
    target, oracle = SilentLookupd(times), Oracle()
    with oracle.watching(), target.opened():
        verdict = oracle.judge(target, b"  V1PING\n")
    assert ("neither an answer" in verdict.text if verdict else False) is is_finding


class SilentLookupd(LookupdTarget):
    """An nsqlookupd that serves the bystander only after so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    async def bystand(self) -> None:
        self._left -= 1
        if self._left >= 0:
            await asyncio.Event().wait()
        await super().bystand()
