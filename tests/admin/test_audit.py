"""The audit log."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from emberq.admin.access.gate import Visitor
from emberq.admin.access.user import Role
from emberq.admin.audit import ActionOutcome, Audit, AuditedAction
from emberq.base.clock import ManualClock
from emberq.embedded import EmbeddedThread
from emberq.http.message import Request
from tests.admin.conftest import StartAdmin
from tests.support.embedded import create

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
