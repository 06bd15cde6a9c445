"""The webhook, in a running nsqadmin: what it is told of alerts, and how often it is tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberq.admin.webhook import Webhook
from tests.admin.test_live import Watched
from tests.support.cluster_rig import channel_entry, topic_entry
from tests.support.threaded_http import Reply, ThreadedHttp
from tests.support.waiting import wait_until


class Receiver(ThreadedHttp):
    """Answers with `status`, and remembers what is posted to it."""

    def __init__(self) -> None:
        self.status = 200
        super().__init__(lambda _request: Reply(status=self.status))
        self.url = f"http://user:password@{self.address}/hidden?token=secret"

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.received]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


RULES = '[[rule]]\nname = "Deep"\nwhen = "depth"\nabove = 3\n'


class Alarmed(Watched):
    """An nsqadmin whose time stands still, with rules, and an nsqd that says what the test wants."""

    def set_depths(self, **depths: int) -> None:
        channels = [channel_entry(name, depth=depth) for name, depth in depths.items()]
        self.nsqd.answers["/stats"] = {"topics": [topic_entry("t", *channels)]}

    def results(self) -> dict[str, int]:
        return self.admin.call(lambda: dict(self._webhook.results))

    @property
    def _webhook(self) -> Webhook:
        return self.admin.daemon._webhook


def test_the_webhook_is_told_all_changes_of_a_look_in_one_message(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with Alarmed(alert_rules_file=str(rules), alert_webhook_url=receiver.url) as alarmed:
        alarmed.wait_until_idle()  # rules that were given are looked after without a browser and without a history
        alarmed.set_depths(a=5, b=7, c=1)
        receiver.status = 503
        alarmed.advance(seconds=10)
        wait_until(lambda: alarmed.results()["failed"] == 1)
        alarmed.set_depths(a=5, b=1, c=1)
        alarmed.advance(seconds=0.5)
        assert len(receiver.received) == 1  # it is left alone for a while
        receiver.status = 204
        alarmed.advance(seconds=10)
        alarmed.wait_until_idle()
        wait_until(
            lambda: alarmed.results()["taken"] >= 1 and not alarmed.admin.call(lambda: alarmed._webhook.waiting_count)
        )
        first, *_, last = receiver.messages
        assert [(each["channel"], each["state"]) for each in first["alerts"]] == [("a", "firing"), ("b", "firing")]
        assert (first["version"], first["firing_count"]) == (1, 2)
        assert first["text"].splitlines() == [
            "FIRING Deep: t / a: 5 messages wait",
            "FIRING Deep: t / b: 7 messages wait",
        ]
        assert last["alerts"][-1]["channel"] == "b"
        assert (last["alerts"][-1]["state"], last["firing_count"]) == ("resolved", 1)
        assert "RESOLVED Deep: t / b" in last["text"]
        assert alarmed.admin.get("/api/rules").json()["webhook"] == receiver.address
        assert "secret" not in alarmed.admin.get("/config/alert_webhook_url").text
    assert "answered with status 503" in caplog.text
    assert "secret" not in caplog.text
    assert "hidden" not in caplog.text
    assert "password" not in caplog.text


def test_a_message_that_is_refused_is_not_sent_again(tmp_path: Path, receiver: Receiver) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f'webhook = "{receiver.url}"\n{RULES}')
    receiver.status = 404
    with Alarmed(alert_rules_file=str(rules)) as alarmed:
        alarmed.wait_until_idle()
        alarmed.set_depths(a=5)
        alarmed.advance(seconds=10)
        wait_until(lambda: alarmed.results()["refused"] == 1)
        wait_until(lambda: alarmed.admin.call(lambda: alarmed._webhook.waiting_count) == 0)
        alarmed.advance(seconds=60)
        alarmed.wait_until_idle()
        assert len(receiver.received) == 1
