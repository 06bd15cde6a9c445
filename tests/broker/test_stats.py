"""Snapshots."""

from __future__ import annotations

from dataclasses import asdict

from emberq.broker.stats import ClientStats


def test_a_client_of_which_nothing_is_known_has_done_nothing() -> None:
    assert [name for name, value in asdict(ClientStats()).items() if value] == []
