"""A journal that cannot be opened: its topic refuses everything and says why, and all others are served."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from emberq.broker.broker import Broker
from emberq.broker.error import JournalFailedError
from emberq.broker.topic import QuarantinedTopic
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, published


@pytest.fixture
def rig(tmp_path: Path) -> JournalRig:
    """Two journaled topics, one of which a later version has written."""
    rig = JournalRig(tmp_path)
    for topic in ("bad", "good"):
        rig.channel(topic=topic)
        rig.channel("paused", topic=topic).pause()
        rig.publish(b"kept", topic=topic)

    def spoil() -> None:
        (rig.topic_folder("bad") / "journal.json").write_text('{"format":99,"uuid":"","created":""}')

    rig.crash(before_start=spoil)
    return rig


def files(rig: JournalRig) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in rig.topic_folder("bad").rglob("*") if path.is_file()}


def test_other_topics_are_served(rig: JournalRig) -> None:
    consumer = Consumer(rig.channel(topic="good"), rdy=5)
    assert [message.body for message in consumer.received] == [b"kept"]
    assert rig.send(b"more", topic="good").is_stored
    assert list(rig.broker.journal_problems) == ["bad"]


@pytest.mark.parametrize(
    "use",
    [
        lambda broker: broker.topic("bad").publish(*published([b"x"])),
        lambda broker: broker.topic("bad").publish_deferred(published([b"x"])[0], delay_ns=1),
        lambda broker: broker.topic("bad").channel("c"),
        lambda broker: broker.topic("bad").empty(),
        lambda broker: broker.delete_topic("bad"),
    ],
)
def test_its_own_topic_refuses_everything_by_name_and_leaves_its_files_alone(
    rig: JournalRig, use: Callable[[Broker], object]
) -> None:
    before = files(rig)
    with pytest.raises(JournalFailedError, match=r"the journal of bad: it cannot be opened: .* format 99"):
        use(rig.broker)
    assert files(rig) == before
    assert isinstance(rig.broker.find_topic("bad"), QuarantinedTopic)


def test_its_channels_stay_in_nsqd_dat_and_come_back_when_it_can_be_opened(rig: JournalRig) -> None:
    bad, good = sorted(rig.broker.metadata("test").topics, key=lambda topic: topic.name)
    assert bad.channels == good.channels
    rig.crash(before_start=(rig.topic_folder("bad") / "journal.json").unlink)
    assert not rig.broker.journal_problems
    consumer = Consumer(rig.channel(topic="bad"), rdy=5)
    assert [message.body for message in consumer.received] == [b"kept"]
    assert rig.channel("paused", topic="bad").paused


def test_statistics_show_what_is_wrong(rig: JournalRig) -> None:
    bad, good = rig.broker.snapshot()
    assert bad.journal is not None
    assert "format 99" in str(bad.journal.problem)
    assert good.journal is not None
    assert good.journal.problem is None


# Without room on the disk.


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Makes a disk on which no temporary file can be written, as long as it is entered."""

    @contextmanager
    def full() -> Iterator[None]:
        def refuses(_fd: int, _content: bytes, _position: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", refuses)
            yield

    return full


def test_a_channel_without_a_cursor_comes_back_on_a_full_disk_and_is_saved_before_a_publish(
    tmp_path: Path, full: Callable[[], AbstractContextManager[None]]
) -> None:
    rig = JournalRig(tmp_path)
    rig.channel("old")
    rig.publish(b"kept")
    rig.channel("new")
    rig.broker.close()
    with full():
        rig.crash(before_start=rig.cursor_path("new").unlink)
        assert [message.body for message in Consumer(rig.channel("old"), rdy=5).received] == [b"kept"]
        for _ in range(2):
            with pytest.raises(JournalFailedError, match=r"new\.cursor: no space left on device"):
                rig.publish(b"more")
            rig.broker.reopen_journals()
        assert "no space left on device" in rig.broker.journal_problems["t"]
    rig.broker.reopen_journals()
    assert not rig.broker.journal_problems
    assert rig.cursor_path("new").exists()
    assert rig.send(b"more").is_stored
    rig.crash()
    assert [message.body for message in Consumer(rig.channel("new"), rdy=5).received] == [b"more"]
