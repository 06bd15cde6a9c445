"""The commands for topics, channels and nodes, against a real cluster."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from emberq.cli.main import main
from emberq.cli.terminal import DONE, FAILED, MISUSED
from emberq.embedded import EmbeddedThread
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.screen import Screen
from tests.support.embedded import Broker, create, http_of, publish
from tests.support.nsqd_process import NsqdProcess
from tests.support.waiting import wait_until

Captured = pytest.CaptureFixture[str]


def nsqd_flag(nsq: EmbeddedThread) -> str:
    return f"--nsqd-http-address={nsq.nsqd_http_addresses[0]}"


def lookupd_flag(nsq: EmbeddedThread) -> str:
    return f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}"


def figures(nsq: EmbeddedThread, topic: str, channel: str = "") -> dict[str, Any]:
    """Empty if there is no such topic or channel."""
    found = http_of(nsq.nsqd_http_addresses[0]).get("/stats?format=json").json()["topics"]
    of_topic: dict[str, Any] = next((each for each in found if each["topic_name"] == topic), {})
    if not channel:
        return dict(of_topic)
    return next((dict(each) for each in of_topic.get("channels", []) if each["channel_name"] == channel), {})


@pytest.mark.parametrize("flag", [nsqd_flag, lookupd_flag])
def test_topics_and_channels_are_created_listed_and_deleted(
    nsq: EmbeddedThread, flag: Callable[[EmbeddedThread], str], capsys: Captured
) -> None:
    create(nsq, "orders", "mail")
    where = flag(nsq)
    assert main(["topic", "create", "clicks", where]) == DONE
    assert main(["channel", "create", "orders", "archive", where]) == DONE
    assert figures(nsq, "orders", "archive")
    capsys.readouterr()
    assert main(["topic", "list", where]) == DONE
    assert capsys.readouterr().out == "clicks\norders\n"
    assert main(["channel", "list", "orders", where, "--json"]) == DONE
    listed = [json.loads(line)["channel"] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["archive", "mail"]
    assert main(["channel", "delete", "orders", "archive", "--yes", where]) == DONE
    assert main(["topic", "delete", "orders", where, "--yes"]) == DONE
    assert figures(nsq, "orders") == {}
    assert "deleted orders (" in capsys.readouterr().out


def test_they_are_paused_unpaused_and_emptied(nsq: EmbeddedThread, capsys: Captured) -> None:
    Broker(nsq).queue("orders", "mail", [b"1", b"2"])
    where = nsqd_flag(nsq)
    for words in (["topic", "pause", "orders"], ["channel", "pause", "orders", "mail"]):
        assert main([*words, where, "--json"]) == DONE
        assert json.loads(capsys.readouterr().out)["done"] == "paused"
    assert (figures(nsq, "orders")["paused"], figures(nsq, "orders", "mail")["paused"]) == (True, True)
    assert main(["topic", "unpause", "orders", where]) == DONE
    assert main(["channel", "unpause", "orders", "mail", where]) == DONE
    assert (figures(nsq, "orders")["paused"], figures(nsq, "orders", "mail")["paused"]) == (False, False)
    wait_until(lambda: figures(nsq, "orders", "mail")["depth"] == 2)
    assert main(["channel", "empty", "orders", "mail", where, "--yes"]) == DONE
    assert figures(nsq, "orders", "mail")["depth"] == 0


def test_what_destroys_messages_is_not_done_without_a_word(nsq: EmbeddedThread, capsys: Captured) -> None:
    Broker(nsq).queue("orders", "mail", [b"1"])
    for words in (["topic", "delete", "orders"], ["channel", "empty", "orders", "mail"]):
        assert main([*words, nsqd_flag(nsq)]) == MISUSED
        assert "Add --yes if you mean it." in capsys.readouterr().err
    wait_until(lambda: figures(nsq, "orders", "mail")["depth"] == 1)


def test_a_terminal_is_asked(nsq: EmbeddedThread) -> None:
    Broker(nsq).queue("orders", "mail", [b"1", b"2"])
    wait_until(lambda: figures(nsq, "orders", "mail")["depth"] == 2)
    command = ("topic", "delete", "orders", nsqd_flag(nsq))
    for answer, status in (("n\n", FAILED), ("\x03", 130), ("y\n", DONE)):
        assert figures(nsq, "orders")
        with PseudoTerminal(*command) as terminal:
            terminal.await_drawn("Delete the topic orders, with 2 messages on 1 nsqd? [y/N] ")
            terminal.process.send_signal(2) if answer == "\x03" else terminal.press(answer)
            assert terminal.await_end() == status
    assert figures(nsq, "orders") == {}


def test_stats_are_figures_of_topics_channels_and_clients(nsq: EmbeddedThread, capsys: Captured) -> None:
    Broker(nsq).queue("orders", "mail", [b"1", b"2"])
    publish(nsq, "clicks", b"1")
    where = nsqd_flag(nsq)
    wait_until(lambda: figures(nsq, "orders", "mail")["depth"] == 2)
    assert main(["topic", "stats", where]) == DONE
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    depths = {(each["topic"], each["channel"]): each["depth"] for each in found}
    assert depths == {("clicks", None): 1, ("orders", None): 0, ("orders", "mail"): 2}
    assert main(["topic", "stats", "clicks", where]) == DONE
    assert json.loads(capsys.readouterr().out)["message_count"] == 1
    assert main(["channel", "stats", "orders", "mail", where]) == DONE
    (channel,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (channel["depth"], channel["clients"]) == (2, [])


def test_a_terminal_shows_a_table(nsq: EmbeddedThread, monkeypatch: pytest.MonkeyPatch) -> None:
    Broker(nsq).queue("orders", "mail", [b"1"])
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "100")
    for words in (["topic", "stats"], ["channel", "stats", "orders", "mail"], ["node", "list"]):
        assert main([*words, nsqd_flag(nsq)]) == DONE
    assert all(title in screen.text for title in ("TOPIC", "CHANNEL", "DEPTH", "NODE", "VERSION"))


def test_nodes_are_listed_and_shown(nsq: EmbeddedThread, capsys: Captured) -> None:
    create(nsq, "orders", "mail")
    assert main(["node", "list", lookupd_flag(nsq), "--json"]) == DONE
    (node,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (node["node"], node["topics"]) == (nsq.nsqd_http_addresses[0], ["orders"])
    assert main(["node", "stats", node["node"], lookupd_flag(nsq)]) == DONE
    assert [json.loads(line)["channel"] for line in capsys.readouterr().out.splitlines()] == [None, "mail"]


def test_a_topic_is_tombstoned_on_a_node(nsq: EmbeddedThread, capsys: Captured) -> None:
    create(nsq, "orders")
    words = ["node", "tombstone", nsq.nsqd_http_addresses[0], "orders", "--yes"]
    assert main([*words, nsqd_flag(nsq)]) == FAILED
    assert "--lookupd-http-address names one" in capsys.readouterr().err
    assert main([*words, lookupd_flag(nsq)]) == DONE
    assert figures(nsq, "orders") == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["topic", "pause", "none"], "no nsqd has a topic none"),
        (["channel", "pause", "orders", "none"], "the topic orders has no channel none"),
        (["channel", "list", "none"], "no nsqd has a topic none"),
        (["channel", "create", "none", "c"], "has no such topic"),
        (["node", "stats", "n:1"], "no nsqd of the cluster is called n:1"),
    ],
)
def test_what_is_not_there_is_told(nsq: EmbeddedThread, words: list[str], told: str, capsys: Captured) -> None:
    create(nsq, "orders")
    assert main([*words, nsqd_flag(nsq)]) == FAILED
    assert told in capsys.readouterr().err


def test_a_node_is_drained_and_waited_for_until_it_has_stopped(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "data").mkdir()
    flags = ("--http-address=127.0.0.1:0", "--broadcast-address=127.0.0.1")
    with NsqdProcess(*flags, data_path=tmp_path / "data", log_path=tmp_path / "log") as nsqd:
        listening = re.compile(r"HTTP: listening on (127\.0\.0\.1:\d+)")
        wait_until(lambda: listening.search(nsqd.log) is not None)
        node = listening.findall(nsqd.log)[0]
        http = http_of(node)
        where = f"--nsqd-http-address={node}"
        http.post("/pub?topic=t", b"one")
        http.post("/channel/create?topic=t&channel=c")
        assert main(["node", "drain", node, where, "--yes"]) == DONE
        assert f"{node} is being drained; it holds 1 message in 1 topic" in capsys.readouterr().out
        assert main(["node", "drain", node, where, "--cancel"]) == DONE
        assert f"{node} takes messages again" in capsys.readouterr().out
        assert http.post("/pub?topic=t", b"two").status == 200

        def empty() -> None:
            wait_until(lambda: http_of(node).get("/drain").json()["draining"])
            http_of(node).post("/channel/empty?topic=t&channel=c")

        with ThreadPoolExecutor(1) as other:
            emptied = other.submit(empty)
            assert main(["node", "drain", node, where, "--yes", "--wait", "--json"]) == DONE
            emptied.result()
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert told == [{"node": node, "draining": True, "messages": 2}, {"node": node, "drained": True}]
        assert nsqd.wait() == 0
