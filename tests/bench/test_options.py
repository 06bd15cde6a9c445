"""The command line: which works, how large, which servers."""

from __future__ import annotations

import sys

import pytest

from bench.clients.queue_work import QUEUE_WORKS
from bench.clients.work import WORKS
from bench.options import Options, parse
from bench.scenario import SCENARIOS
from bench.server import Binary, Running

SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}


def parsed(*arguments: str) -> Options:
    return parse(["--binary", sys.executable, *arguments])


def test_all_works_are_done_once_unless_told_otherwise() -> None:
    options = parsed()
    assert options.scenarios == SCENARIOS
    assert options.rounds == 1
    assert options.size(SCENARIO["mpub"]) == SCENARIO["mpub"].size


def test_a_comparison_takes_three_rounds_and_a_quick_one_a_single_round() -> None:
    assert parsed("--peer", sys.executable).rounds == 3
    assert parsed("--peer", sys.executable, "--quick").rounds == 1
    assert parsed("--peer", sys.executable, "--quick", "--rounds", "2").rounds == 2


def test_a_quick_run_is_smaller_but_never_than_what_was_asked_for() -> None:
    assert parsed("--quick").size(SCENARIO["mpub"]).messages < SCENARIO["mpub"].size.messages
    assert parsed("--quick", "--messages", "12345").size(SCENARIO["mpub"]).messages == 12345
    assert parsed("--quick", "--connections", "7").size(SCENARIO["idle"]).connections == 7


def test_works_are_chosen_by_name() -> None:
    assert [scenario.name for scenario in parsed("--only", "drain", "mpub").scenarios] == ["mpub", "drain"]


def test_several_works_are_chosen_by_a_pattern() -> None:
    names = [scenario.name for scenario in parsed("--only", "churn-*", "mpub").scenarios]
    assert names == ["mpub", "churn-plain", "churn-cut", "churn-tls", "churn-snappy", "churn-deflate"]


def test_the_names_of_works_differ_and_each_uniform_work_has_a_mixed_one() -> None:
    names = [*(scenario.name for scenario in SCENARIOS), *(work.name for work in WORKS)]
    assert len(names) == len(set(names))
    assert {name.removesuffix("-uniform") for name in names if name.endswith("-uniform")} <= set(names)


def test_works_for_clients_are_done_when_they_are_asked_for() -> None:
    assert parsed().client_works == ()
    clients = parsed("--clients")
    assert (clients.scenarios, clients.client_works) == ((), (*WORKS, *QUEUE_WORKS))
    some = parsed("--only", "client-batches", "mpub")
    assert [scenario.name for scenario in some.scenarios] == ["mpub"]
    assert [work.name for work in some.client_works] == ["client-batches"]


def test_flags_reach_the_server_that_they_are_for() -> None:
    options = parsed("--binary-flag=--journal", "--peer", sys.executable, "--peer-flag=--log-level=error")
    assert isinstance(options.ours, Binary)
    assert isinstance(options.peer, Binary)
    assert (options.ours.flags, options.peer.flags) == (("--journal",), ("--log-level=error",))


def test_a_running_server_is_named_by_address_and_process() -> None:
    options = parse(["--nsqd", "127.0.0.1:4150", "--http", "127.0.0.1:4151", "--pid", "42"])
    assert isinstance(options.ours, Running)
    server = options.ours.server
    assert (server.address, server.http_address, server.pid) == (("127.0.0.1", 4150), ("127.0.0.1", 4151), 42)


def test_the_command_is_kept_without_where_files_lie() -> None:
    options = parse(["--binary", sys.executable, "--only", "mpub", "--markdown", "a b.md"])
    name = sys.executable.rpartition("/")[2]
    assert options.command == f"python -m bench --binary {name} --only mpub --markdown 'a b.md'"


@pytest.mark.parametrize(
    "arguments",
    [["--peer", "/no/such/program"], ["--nsqd", "nowhere"], ["--rounds", "0"], ["--only", "nothing"]],
)
def test_nonsense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        parsed(*arguments)
    assert refusal.value.code == 2
    assert "error: argument" in capsys.readouterr().err
