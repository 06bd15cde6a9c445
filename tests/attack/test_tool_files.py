"""What strangers can reach through nsq_to_file: paths made of topic names, and files that hold messages."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from emberq.embedded import EmbeddedThread
from tests.support.embedded import create, publish
from tests.support.tool_process import ToolProcess
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Deep enough that a way out of it stays within what the test may look at."""
    path = tmp_path / "a" / "b" / "archive"
    path.mkdir(parents=True)
    return path


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def archive(nsq: EmbeddedThread, *flags: str, until_written: Path) -> None:
    """Run nsq_to_file until a file with messages is there."""
    lookupd = f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}"
    with ToolProcess("nsq_to_file", lookupd, "--sync-interval=50ms", "--skip-empty-files", *flags) as tool:
        wait_until(lambda: any(path.stat().st_size for path in until_written.rglob("*") if path.is_file()))
        assert tool.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("topic", ["..", "."])
@pytest.mark.parametrize("template", ["<TOPIC>/<DATETIME>.log", "x/<TOPIC>/<TOPIC>/<TOPIC>/<HOST>.log"])
def test_a_topic_that_is_called_like_a_folder_stays_below_the_output_folder(
    nsq: EmbeddedThread, tmp_path: Path, folder: Path, topic: str, template: str
) -> None:
    """The topic is found by a pattern: any publisher may have created it."""
    create(nsq, topic)
    publish(nsq, topic, b"out")
    archive(
        nsq,
        "--topic-pattern=.*",
        f"--filename-format={template}",
        f"--output-dir={folder}",
        until_written=tmp_path,
    )
    written = files_below(tmp_path)
    assert written
    assert [path for path in written if not path.startswith("a/b/archive/")] == []
    (inside,) = files_below(folder)
    assert "%2E" in inside


def test_no_stranger_can_read_what_was_archived(nsq: EmbeddedThread, folder: Path) -> None:
    create(nsq, "t")
    publish(nsq, "t", b"confidential")
    before = os.umask(0o000)
    try:
        work = folder / "work"
        archive(
            nsq,
            "--topic=t",
            "--filename-format=deeper/<TOPIC><REV>.log",
            f"--output-dir={folder}/out",
            f"--work-dir={work}",
            until_written=folder,
        )
    finally:
        os.umask(before)
    made = list(folder.rglob("*"))
    assert any(path.is_file() for path in made)
    assert [path for path in made if path.stat().st_mode & 0o007] == []
