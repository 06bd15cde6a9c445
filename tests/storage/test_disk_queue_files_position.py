"""The meta file of a disk queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.storage.disk_queue_files import QueuePosition, encode, load_position, save_position
from emberq.storage.error import DamagedPositionError
from tests.crash.simulated_files import ROOT, Choice, SimulatedFiles

numbers = st.integers(0, 1 << 40)


def test_the_file_has_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    save_position(path, QueuePosition(depth=9, read_file=0, read_pos=0, write_file=0, write_pos=281))
    assert path.read_bytes() == b"9\n0,0\n0,281\n"


@given(st.builds(QueuePosition, numbers, numbers, numbers, numbers, numbers))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, position: QueuePosition) -> None:
    path = tmp_path_factory.getbasetemp() / "meta"
    path.write_bytes(encode(position))
    assert load_position(path) == position


def test_a_negative_depth_is_left_to_the_queue_to_correct(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    path.write_bytes(b"-2\n1,2\n3,4\n")
    assert load_position(path) == QueuePosition(-2, 1, 2, 3, 4)


def test_a_new_queue_starts_at_the_beginning_of_its_first_file() -> None:
    assert QueuePosition() == (0, 0, 0, 0, 0)


def test_positions_go_as_far_as_the_operating_system_does(tmp_path: Path) -> None:
    path, largest = tmp_path / "meta", (1 << 62) - 1
    path.write_bytes(b"0\n0,0\n0,%d\n" % largest)
    assert load_position(path) == QueuePosition(write_pos=largest)
    path.write_bytes(b"0\n0,0\n0,%d\n" % (largest + 1))
    with pytest.raises(DamagedPositionError):
        load_position(path)


def test_no_file_is_no_position(tmp_path: Path) -> None:
    assert load_position(tmp_path / "meta") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"9",
        b"9\n0,0\n0,281",
        b"9\n0,0\n",
        b"9\n0,0\n0,281\n\n",
        b"9\n0,-1\n0,281\n",
        b"x\n0,0\n0,281\n",
        b"9\n0,0\n0,9223372036854775807\n",
        b"\0" * 12,
    ],
)
def test_a_damaged_file_is_recognised(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "meta"
    path.write_bytes(content)
    with pytest.raises(DamagedPositionError):
        load_position(path)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_at_any_moment_leaves_a_whole_file(seed: int) -> None:
    """One that makes no sense would bring back everything that is still in the data files."""
    fs = SimulatedFiles()
    path = ROOT / "meta"
    for depth in range(1, 5):
        save_position(path, QueuePosition(depth=depth), fs=fs)
    for moment in range(fs.moment + 1):
        load_position(path, fs=fs.power_cut(moment, Choice(seed)))
