"""Where a command finds its cluster: flags, environment, contexts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from emberq.cli.argument import (
    add_cluster_flags,
    add_nsqd_tcp_flag,
    add_security_flags,
    addresses,
    auth_secret,
    lookupd_secret,
    nsqd_tcp_addresses,
)
from emberq.cli.context import main
from emberq.cli.main import main as emberq
from emberq.cli.pub import main as pub
from emberq.cli.replay import make_parser as replay_parser
from emberq.cli.requeue_dead import main as requeue_dead
from emberq.cli.terminal import DONE, FAILED, MISUSED, CommandError, UsageError, command_parser
from emberq.embedded import EmbeddedThread
from tests.support.embedded import Broker

Captured = pytest.CaptureFixture[str]
CONTEXTS = """
default = "staging"

[contexts.staging]
nsqd_tcp_address = "s:4150"
nsqd_http_address = ["s:4151"]
auth_secret_file = "{folder}/staging"

[contexts.production]
lookupd_http_address = ["https://l1:4161", "https://l2:4161"]
tls_root_ca_file = "{folder}/ca.pem"
tls = true
auth_secret_file = "{folder}/production"
"""


@pytest.fixture(autouse=True)
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "contexts.toml"
    path.write_text(CONTEXTS.replace("{folder}", str(tmp_path)))
    for name in ("staging", "production"):
        (tmp_path / name).write_text(f"secret of {name}\n")
    monkeypatch.setenv("EMBERQ_CONTEXTS", str(path))
    return path


def looking(*words: str) -> argparse.Namespace:
    parser = command_parser("emberq try", "Try it.")
    add_cluster_flags(parser)
    return parser.read(words)


def publishing(*words: str) -> argparse.Namespace:
    parser = command_parser("emberq try", "Try it.")
    add_nsqd_tcp_flag(parser)
    add_security_flags(parser)
    return parser.read(words)


def test_without_a_word_it_is_the_default_context() -> None:
    assert nsqd_tcp_addresses(publishing()) == ["s:4150"]
    assert addresses(looking()).nsqds == ("s:4151",)
    assert auth_secret(looking()) == b"secret of staging"


def test_a_context_is_chosen_by_flag_or_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = looking("--context=production")
    assert addresses(arguments).lookupds == ("https://l1:4161", "https://l2:4161")
    assert addresses(arguments).nsqds == ()
    assert (arguments.tls, arguments.tls_root_ca_file) == (True, tmp_path / "ca.pem")
    monkeypatch.setenv("EMBERQ_CONTEXT", "production")
    assert auth_secret(looking()) == b"secret of production"
    assert addresses(looking("--context=staging")).nsqds == ("s:4151",)


def test_the_environment_counts_before_the_default_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERQ_NSQD_TCP_ADDRESS", "e:1, e:2")
    monkeypatch.setenv("EMBERQ_TLS_INSECURE", "1")
    arguments = publishing()
    assert (nsqd_tcp_addresses(arguments), arguments.tls_insecure) == (["e:1", "e:2"], True)
    assert auth_secret(arguments) == b""  # that of another cluster stays at home
    assert nsqd_tcp_addresses(publishing("--context=staging")) == ["s:4150"]
    assert nsqd_tcp_addresses(publishing("--nsqd-tcp-address=f:1")) == ["f:1"]


def test_what_the_environment_cannot_mean_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("EMBERQ_TLS", "perhaps")
    assert pub(["t", "x"]) == MISUSED
    assert "EMBERQ_TLS must be 1 or 0" in capsys.readouterr().err
    monkeypatch.setenv("EMBERQ_TLS", "0")
    monkeypatch.setenv("EMBERQ_NSQD_TCP_ADDRESS", "a:99999")
    assert pub(["t", "x"]) == MISUSED
    assert "port 99999 is above 65535" in capsys.readouterr().err


def test_secrets_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQ_AUTH_SECRET", "old")
    assert auth_secret(looking()) == b"old"
    monkeypatch.setenv("EMBERQ_AUTH_SECRET", "new")
    monkeypatch.setenv("EMBERQ_LOOKUPD_SECRET", "lookup")
    assert (auth_secret(looking()), lookupd_secret(looking())) == (b"new", b"lookup")
    assert auth_secret(looking("--context=production")) == b"secret of production"


def test_secrets_of_a_context_are_not_shown_to_addresses_from_elsewhere() -> None:
    arguments = publishing("--nsqd-tcp-address=stranger:4150")
    assert (nsqd_tcp_addresses(arguments), auth_secret(arguments)) == (["stranger:4150"], b"")
    arguments = publishing("--nsqd-tcp-address=another:4150", "--context=staging")  # unless that was asked for
    assert (nsqd_tcp_addresses(arguments), auth_secret(arguments)) == (["another:4150"], b"secret of staging")


def test_a_context_that_cannot_serve_is_no_reason_to_ask_this_machine() -> None:
    with pytest.raises(UsageError, match="the context production has no address that this command can use"):
        publishing("--context=production")


def test_a_cluster_without_the_address_that_is_needed_is_no_reason_either(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("EMBERQ_NSQD_HTTP_ADDRESS", "127.0.0.1:1")
    assert requeue_dead(["dead", "--to=alive"]) == FAILED
    assert "Add --nsqd-tcp-address." in capsys.readouterr().err
    with pytest.raises(CommandError, match="the environment has no nsqd_tcp_address, which is needed here"):
        nsqd_tcp_addresses(replay_parser().read(["t", "--to=u"]))


def test_an_environment_that_cannot_serve_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERQ_LOOKUPD_HTTP_ADDRESS", "l:4161")
    with pytest.raises(UsageError, match="the environment has no address that this command can use"):
        publishing()
    assert nsqd_tcp_addresses(publishing("--nsqd-tcp-address=f:1")) == ["f:1"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("contexts.a.nsqd_tcp_addres = 'x:1'", "nsqd_tcp_addres is no key"),
        ("contexts.a.tls = 'yes'", "tls must be true or false"),
        ("contexts.a.nsqd_tcp_address = 4150", "must be an address, or a list of them"),
        ("contexts.a = 1", "is not a table"),
        ("context.a.tls = true", "neither `default` nor `contexts`"),
        ("contexts = [", "contexts.toml: "),
    ],
)
def test_a_file_that_cannot_be_used_is_told(contexts: Path, text: str, told: str, capsys: Captured) -> None:
    contexts.write_text(text)
    assert pub(["t", "x"]) == MISUSED
    assert told in capsys.readouterr().err


def test_a_mistyped_name_is_answered_with_the_nearest(capsys: Captured) -> None:
    assert pub(["t", "x", "--context=prduction"]) == MISUSED
    assert "Did you mean production?" in capsys.readouterr().err


def test_contexts_are_listed_and_shown(contexts: Path, capsys: Captured) -> None:
    assert main(["list"]) == DONE
    assert capsys.readouterr().out == "* staging s:4150, s:4151\n  production https://l1:4161, https://l2:4161\n"
    assert main(["list", "--json"]) == DONE
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["context"], first["is_current"], first["nsqd_tcp_address"]) == ("staging", True, ["s:4150"])
    assert main(["show", "production"]) == DONE
    assert "--tls\n" in capsys.readouterr().out
    contexts.unlink()
    assert main(["list"]) == DONE
    assert "there are none in" in capsys.readouterr().err


def test_what_every_command_has_may_stand_before_it(nsq: EmbeddedThread, contexts: Path, capsys: Captured) -> None:
    contexts.write_text(f"[contexts.here]\nnsqd_tcp_address = '{nsq.nsqd_tcp_addresses[0]}'")
    assert emberq(["--context", "here", "--json", "pub", "t", "x"]) == DONE
    assert json.loads(capsys.readouterr().out)["published"] == 1
    assert Broker(nsq).take_all("t") == [b"x"]
    assert emberq(["--json", "context", "list"]) == DONE
    assert json.loads(capsys.readouterr().out)["context"] == "here"
