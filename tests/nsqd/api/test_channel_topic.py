"""POST /topic/…, where something goes wrong behind it. The rest is in the conformance tests."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from emberq.base.file import OsFiles
from emberq.broker.broker import PORTION_CHANNELS
from emberq.nsqd.api.channel import TopicApi
from emberq.storage.error import MetadataError
from tests.broker.rig import Rig
from tests.nsqd.api.rig import RigNode, answer_of, refusal_of, request
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.waiting import wait_until


def test_a_pause_that_cannot_be_saved_is_a_failure(rig: Rig) -> None:
    node = RigNode(rig)
    node.metadata_failure = MetadataError("open nsqd.dat: read-only file system")
    rig.topic("t")
    api = TopicApi(node)
    assert refusal_of(api.pause, request("topic=t")) == (500, "INTERNAL_ERROR")
    assert refusal_of(api.unpause, request("topic=t")) == (500, "INTERNAL_ERROR")


def test_a_pause_is_saved_before_it_is_answered(rig: Rig) -> None:
    node = RigNode(rig)
    topic = rig.topic("t")
    api = TopicApi(node)
    answer_of(api.pause, request("topic=t"))
    assert (topic.paused, node.persisted_count) == (True, 1)
    answer_of(api.unpause, request("topic=t"))
    assert (topic.paused, node.persisted_count) == (False, 2)


def test_a_topic_with_many_channels_is_gone_at_once_and_that_is_answered_when_its_files_are(rig: Rig) -> None:
    node = RigNode(rig)
    api = TopicApi(node)
    topic = rig.topic()
    for number in range(PORTION_CHANNELS + 1):
        topic.channel(f"c{number}")

    async def delete() -> None:
        answer = asyncio.ensure_future(api.delete(request("topic=t")))
        await asyncio.sleep(0)
        assert rig.broker.find_topic("t") is None
        assert (answer.done(), node.removed_count, len(topic.channels)) == (False, 0, 1)
        rig.run_due()
        await answer
        assert (node.removed_count, len(topic.channels)) == (1, 0)

    asyncio.run(delete())


def test_emptying_a_topic_is_answered_when_its_files_are_gone(rig: Rig) -> None:
    node = RigNode(rig)
    rig.publish(b"abc")
    answer_of(TopicApi(node).empty, request("topic=t"))
    assert (rig.topic().depth, node.removed_count) == (0, 1)


def test_no_topic_is_made_while_the_broker_closes(rig: Rig) -> None:
    api = TopicApi(RigNode(rig))
    rig.broker.close()
    assert refusal_of(api.create, request("topic=t")) == (500, "INTERNAL_ERROR")


@pytest.mark.parametrize("name", ["a$", "", "*"])
def test_only_creating_and_emptying_care_how_a_name_looks(rig: Rig, name: str) -> None:
    api = TopicApi(RigNode(rig))
    for handler in (api.create, api.empty):
        assert refusal_of(handler, request(f"topic={name}")) == (400, "INVALID_TOPIC")
    for handler in (api.delete, api.pause, api.unpause):
        assert refusal_of(handler, request(f"topic={name}")) == (404, "TOPIC_NOT_FOUND")


def test_creating_a_topic_again_changes_nothing(rig: Rig) -> None:
    api = TopicApi(RigNode(rig))
    api.create(request("topic=t"))
    rig.publish(b"kept")
    api.create(request("topic=t"))
    assert rig.topic_stats().depth == 1


@pytest.mark.nsqd(journal=True)
def test_a_journaled_topic_that_cannot_be_deleted_stays_and_the_caller_is_told(
    nsqd: NsqdHarness, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = OsFiles.rename

    def fails(files: OsFiles, source: Path, target: Path) -> None:
        if source.name == "t.journal":
            raise OSError(errno.EACCES, "permission denied")
        rename(files, source, target)

    nsqd.create_channel("t", "c")
    with monkeypatch.context() as broken:
        broken.setattr(OsFiles, "rename", fails)
        assert http.post("/topic/delete?topic=t").status == 500
    assert http.post("/pub?topic=t", b"x").status == 200
    assert nsqd.channel("t", "c").depth == 1
    assert http.post("/topic/delete?topic=t").status == 200
    wait_until(lambda: not list(Path(nsqd.options.data_path).glob("t.*")))


@pytest.mark.nsqd(journal=True)
def test_a_deletion_that_a_power_failure_could_undo_is_not_answered_with_200(
    nsqd: NsqdHarness, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_files: OsFiles, _path: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    nsqd.create_channel("t", "c")
    with monkeypatch.context() as broken:
        broken.setattr(OsFiles, "sync_folder", fails)
        assert http.post("/topic/delete?topic=t").status == 500


@pytest.mark.nsqd(mem_queue_size=0)
@pytest.mark.parametrize("asked", ["/topic/delete?topic=t", "/channel/delete?topic=t&channel=c"])
def test_files_of_a_disk_queue_that_cannot_be_removed_are_told(
    nsqd: NsqdHarness, http: HttpClient, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    unlink = OsFiles.unlink

    def fails(files: OsFiles, path: Path, *, missing_ok: bool = False) -> None:
        if path.name.startswith("t:c.diskqueue"):
            raise OSError(errno.EIO, "input/output error")
        unlink(files, path, missing_ok=missing_ok)

    nsqd.create_channel("t", "c")
    http.post("/pub?topic=t", b"x")
    with monkeypatch.context() as broken:
        broken.setattr(OsFiles, "unlink", fails)
        assert http.post(asked).status == 500
    nsqd.create_channel("u", "c")
    assert http.post("/topic/delete?topic=u").status == 200
