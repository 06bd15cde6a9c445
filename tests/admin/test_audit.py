"""The audit log."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from emberq.admin.access.gate import Visitor
from emberq.admin.access.user import Role
from emberq.admin.audit import ActionOutcome, Audit, AuditedAction, AuditFilter
from emberq.base.clock import ManualClock
from emberq.embedded import EmbeddedThread
from emberq.http.message import Request
from tests.admin.conftest import StartAdmin
from tests.support.embedded import create, publish

ADA = Visitor("ada", Role.ADMIN)


async def record(path: str, deed: AuditedAction, *, message: str = "") -> None:
    request = Request("DELETE", "/api/topics/t", remote_address="10.0.0.7:5000")
    audit = Audit(path, clock=ManualClock())
    await audit.record(request, ADA, deed, ActionOutcome.DONE, message)


async def test_an_action_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    await record(str(path), AuditedAction(action="delete_topic", topic="t"))
    await record(str(path), AuditedAction(action="log_out"))
    first, second = path.read_text().splitlines()
    assert json.loads(first) == {
        "time": "2023-11-14T22:13:20.000Z",
        "user": "ada",
        "is_known": True,
        "role": "admin",
        "remote": "10.0.0.7:5000",
        "action": "delete_topic",
        "topic": "t",
        "outcome": "done",
        "message": "",
    }
    assert json.loads(second)["action"] == "log_out"


async def test_a_name_cannot_forge_a_line_or_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    await record(str(path), AuditedAction(action="x", topic='t\n{"user": "eve"}\u2028\x1b[2J' + "x" * 10_000))
    (line,) = path.read_bytes().splitlines()
    assert line.isascii()
    assert len(json.loads(line)["topic"]) == 256


async def test_without_a_file_it_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "emberq.admin.audit"):
        await record("", AuditedAction(action="delete_topic", topic="t"))
    (line,) = [entry.getMessage() for entry in caplog.records if entry.name == "emberq.admin.audit"]
    assert json.loads(line.removeprefix("audit: "))["topic"] == "t"


async def test_a_file_that_cannot_be_written_to_is_replaced_by_the_log(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    await record(str(tmp_path / "no" / "audit"), AuditedAction(action="delete_topic", topic="t"))
    assert '"action": "delete_topic"' in caplog.text


def test_what_was_done_failed_or_was_refused_is_told(
    start_admin: StartAdmin, cluster: EmbeddedThread, tmp_path: Path
) -> None:
    create(cluster, "t", "ch")
    path = tmp_path / "audit"
    admin = start_admin(audit_log_file=str(path), admin_user=("ada",))
    admin.post("/api/topics", {"topic": "new", "channel": "ch"}, X_Forwarded_User="ada")
    admin.post("/api/topics/t/ch", {"action": "pause"}, X_Forwarded_User="ada")
    admin.delete("/api/topics/nope", X_Forwarded_User="ada")
    admin.delete("/api/topics/t", X_Forwarded_User="eve")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["user"], line["action"], line["outcome"]) for line in lines] == [
        ("ada", "create_topic", "done"),
        ("ada", "create_channel", "done"),
        ("ada", "pause_channel", "done"),
        ("ada", "delete_topic", "failed"),
        ("eve", "delete", "refused"),
    ]
    assert lines[3]["message"].startswith("failed to query any nsqlookupd")
    assert lines[4]["detail"] == "DELETE /api/topics/t"
    assert not any(line["is_known"] for line in lines)


@pytest.mark.parametrize("umask", [0o000, 0o022])
async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "audit"
    before = os.umask(umask)
    try:
        Audit(str(path), clock=ManualClock()).check()
        assert path.stat().st_mode & 0o777 == 0o600
        path.unlink()  # as it is rotated
        await record(str(path), AuditedAction(action="log_out"))
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


async def test_a_file_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.touch()
    path.chmod(0o640)
    await record(str(path), AuditedAction(action="log_out"))
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, False), (0o644, True)])
async def test_a_file_that_all_can_read_is_worth_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_told: bool
) -> None:
    path = tmp_path / "audit"
    path.touch()
    path.chmod(mode)
    Audit(str(path), clock=ManualClock()).check()
    assert ("can be read by every user" in caplog.text) is is_told


# It is read back


async def found(audit: Audit, *, count: int = 100, **wanted: str) -> list[str]:
    """The actions of the lines that are found."""
    return [line["action"] for line in (await audit.find(AuditFilter(**wanted), count=count)).lines]


async def test_the_newest_lines_are_found_also_in_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberq.admin.audit._BLOCK_BYTES", 100)  # lines lie across blocks
    path = tmp_path / "audit"
    for number in range(6):
        await record(str(path), AuditedAction(action=f"a{number}", topic="orders" if number % 2 else "users"))
        if number == 2:
            path.rename(tmp_path / "audit.1")
    with path.open("ab") as file:
        file.write(b'[1]\n{"action": "ha')  # what a full disk, or another program, has left
    audit = Audit(str(path), clock=ManualClock())
    assert await found(audit) == ["a5", "a4", "a3", "a2", "a1", "a0"]
    assert await found(audit, count=2) == ["a5", "a4"]
    assert await found(audit, topic="ord*") == ["a5", "a3", "a1"]
    assert await found(audit, user="a?a", action="a1") == ["a1"]
    assert await found(audit, user="eve") == []
    assert await found(audit, user="[a]da") == []
    assert (await audit.find(AuditFilter(), count=6)).has_more is False
    assert (await audit.find(AuditFilter(), count=5)).has_more is True
    monkeypatch.setattr("emberq.admin.audit.MAX_READ_BYTES", 600)
    assert (await audit.find(AuditFilter(), count=6)).has_more is True


@pytest.mark.parametrize("has_file", [True, False])
def test_the_audit_log_is_shown_with_peeks_and_counts(
    start_admin: StartAdmin, cluster: EmbeddedThread, tmp_path: Path, has_file: bool
) -> None:
    create(cluster, "t", "ch", "other")
    publish(cluster, "t", b"one", b"two")
    admin = start_admin(audit_log_file=str(tmp_path / "audit") if has_file else "", admin_user=("ada",))
    ada = {"X_Forwarded_User": "ada"}
    assert len(admin.get("/api/peek/t/ch?count=5", **ada).json()["messages"]) == 2
    assert admin.get("/api/peek/t/ch", X_Forwarded_User="eve").status == 403
    assert admin.post("/api/topics/t/ch", {"action": "empty"}, **ada).status == 200
    many = {"action": "empty", "targets": [{"topic": "t", "channel": "ch"}, {"topic": "t", "channel": "other"}]}
    assert admin.post("/api/actions", many, **ada).json()["done"] == 2
    assert admin.delete("/api/topics/t", **ada).status == 200
    assert admin.get("/api/audit", X_Forwarded_User="eve").status == 403
    shown = admin.get("/api/audit", **ada).json()
    assert (shown["has_more"], shown["has_file"]) == (False, has_file)
    assert [(line["user"], line["action"], line.get("count"), line["outcome"]) for line in shown["lines"]] == [
        ("ada", "delete_topic", 0, "done"),
        ("ada", "empty_channel", 2, "done"),
        ("ada", "empty_channel", 0, "done"),
        ("ada", "empty_channel", 2, "done"),
        ("eve", "peek", None, "refused"),
        ("ada", "peek", 2, "done"),
    ]
    chosen = admin.get("/api/audit?user=ada&action=*_channel&topic=t&count=2", **ada).json()
    assert ([line["channel"] for line in chosen["lines"]], chosen["has_more"]) == (["other", "ch"], True)
    time = shown["lines"][0]["time"]
    assert admin.get(f"/api/audit?until={shown['lines'][-1]['time']}", **ada).json()["lines"] == []
    assert admin.get(f"/api/audit?since={time}&action=delete*", **ada).json()["lines"] == shown["lines"][:1]
    assert admin.get("/api/audit?since=yesterday", **ada).error == (400, "INVALID_ARG_SINCE")
    assert admin.get("/api/audit?count=0", **ada).error == (400, "INVALID_ARG_COUNT")
