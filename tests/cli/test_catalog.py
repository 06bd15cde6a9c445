"""The table of all commands is what they declare."""

from __future__ import annotations

import pytest

from emberq.cli.catalog import catalog, commands_of
from emberq.cli.main import main

ROOT = catalog()
BY_NAME = {entry.name: entry for entry in ROOT}


def test_every_command_can_be_found_with_its_flags() -> None:
    assert {"emberq pub", "emberq journal ls", "emberq channel pause", "emberq nsqd", "emberq up"} <= BY_NAME.keys()
    for entry in commands_of(ROOT):
        assert entry.flags, entry.name
        assert entry.summary, entry.name


def test_every_command_for_people_writes_json_if_asked() -> None:
    names = {entry.name: {name for flag in entry.flags for name in flag.names} for entry in commands_of(ROOT)}
    assert [name for name in names if BY_NAME[name].description and "--json" not in names[name]] == []


def test_what_destroys_messages_asks_first() -> None:
    for noun, verb in (("topic", "delete"), ("topic", "empty"), ("channel", "delete"), ("channel", "empty")):
        assert any("--yes" in flag.names for flag in BY_NAME[f"emberq {noun} {verb}"].flags)
    assert any("--yes" in flag.names for flag in BY_NAME["emberq node tombstone"].flags)


def test_flags_tell_what_they_take() -> None:
    flags = {flag.names[-1]: flag for flag in BY_NAME["emberq nsqd"].flags}
    assert flags["--log-level"].choices == ("debug", "info", "warn", "error", "fatal")
    assert (flags["--msg-timeout"].value, flags["--msg-timeout"].default) == ("duration", "1m0s")
    assert flags["--data-path"].is_path
    top = {flag.names[-1]: flag for flag in BY_NAME["emberq top"].flags}
    assert "depth" in top["--sort"].choices
    assert top["--once"].value == ""
    topic, body = BY_NAME["emberq pub"].arguments
    assert (topic.usage, body.usage) == ("TOPIC", "[BODY...]")


@pytest.mark.parametrize("name", ["emberq channel pause", "emberq bench", "emberq context list"])
def test_the_help_has_the_same_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split()[1:], "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(flag.names[-1] in shown for flag in BY_NAME[name].flags)
