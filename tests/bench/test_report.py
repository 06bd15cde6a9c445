"""What people and machines read."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest

from bench import machine
from bench.clients.contest import Contest
from bench.comparison import Outcome, Row
from bench.metric import Better, Metric
from bench.options import parse
from bench.report import Progress, cautions, contest_table, document, quantity, section, table, tables


def row(measure: str, unit: str, better: Better, *, ours: list[float], peer: list[float]) -> Row:
    return Row(work="mpub", measure=measure, unit=unit, better=better, values={"ours": ours, "peer": peer})


def outcome(*rows: Row, load_average: float = 0.0) -> Outcome:
    servers = {"ours": "nsqd v1", "peer": "nsqd v2"}
    return Outcome(servers=servers, load_average=load_average, rows=list(rows))


NO_CONTEST = Contest()
RATE = row("rate", "msg/s", "higher", ours=[2e6, 1e6, 3e6], peer=[1e6, 1e6, 1e6])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.234, "1.23 x"),
        (12.34, "12.3 x"),
        (1234.0, "1234 x"),
        (56_789.0, "56.8 k x"),
        (1.5e6, "1.50 M x"),
        (0, "0.00 x"),
    ],
)
def test_numbers_show_the_digits_that_matter(value: float, text: str) -> None:
    assert quantity(value, "x") == text


def test_the_table_is_aligned_markdown_with_the_ratio_last() -> None:
    assert table(outcome(RATE), has_peer=True).splitlines() == [
        "| work | measure |         ours |         peer |  ratio |",
        "| ---- | ------- | ------------ | ------------ | ------ |",
        "| mpub | rate    | 2.00 M msg/s | 1.00 M msg/s | 2.00 x |",
    ]


def test_the_table_of_one_server_has_no_ratio() -> None:
    head, *_ = table(outcome(RATE), has_peer=False).splitlines()
    assert "peer" not in head
    assert "ratio" not in head


def test_a_busy_generator_is_pointed_out() -> None:
    nsqd = row("nsqd CPU", "µs/msg", "lower", ours=[1.0], peer=[10.0])
    generator = row("generator CPU", "µs/msg", "neither", ours=[0.9], peer=[0.9])
    rate = row("rate", "msg/s", "higher", ours=[1e5], peer=[1e5])
    assert cautions(outcome(rate, nsqd, generator)) == ["mpub, ours: the generator spent 0.9 times the CPU of nsqd"]


def test_a_generator_that_is_always_busy_is_pointed_out() -> None:
    nsqd = row("nsqd CPU", "µs/msg", "lower", ours=[1.0], peer=[1.0])
    generator = row("generator CPU", "µs/msg", "neither", ours=[0.45], peer=[0.1])
    assert cautions(outcome(RATE, nsqd, generator)) == [
        "mpub, ours: the generator used 90% of a core, and may be what limits the rate"
    ]


def test_the_way_in_and_the_way_out_are_judged_apart() -> None:
    rate = row("out: rate", "msg/s", "higher", ours=[1e5], peer=[1e5])
    nsqd = row("out: nsqd CPU", "µs/msg", "lower", ours=[1.0], peer=[10.0])
    generator = row("out: generator CPU", "µs/msg", "neither", ours=[0.9], peer=[0.9])
    assert cautions(outcome(RATE, rate, nsqd, generator)) == [
        "mpub, out: ours: the generator spent 0.9 times the CPU of nsqd"
    ]


def test_a_run_too_short_for_the_clock_is_not_judged() -> None:
    nsqd = row("nsqd CPU", "µs/msg", "lower", ours=[0.0], peer=[0.0])
    generator = row("generator CPU", "µs/msg", "neither", ours=[0.3], peer=[0.3])
    assert cautions(outcome(RATE, nsqd, generator)) == []


def test_a_busy_machine_is_pointed_out() -> None:
    assert cautions(outcome(RATE, load_average=1.5)) == ["the machine was busy before we began: load average 1.50"]


def test_a_machine_on_which_waiting_is_dear_is_pointed_out() -> None:
    (caution,) = cautions(replace(outcome(RATE), halts_at_once=True))
    assert "halts idle cores at once" in caution


def test_the_document_keeps_every_round() -> None:
    options = parse(["--binary", sys.executable])
    (result,) = json.loads(document(outcome(RATE), NO_CONTEST, options))["results"]
    assert result["ours"] == {"median": 2e6, "rounds": [2e6, 1e6, 3e6]}
    assert result["ratio"] == 2.0


def test_the_section_names_command_machine_and_servers_above_the_table() -> None:
    options = parse(["--binary", sys.executable, "--peer", sys.executable, "--rounds", "3"])
    found = outcome(RATE)
    heading, blank, *facts_and_table = section(found, NO_CONTEST, options).splitlines()
    assert heading == f"## `{options.command}`"
    assert blank == ""
    facts = "\n".join(facts_and_table[: facts_and_table.index("")])
    assert "median of 3 rounds" in facts
    assert machine.processor() in facts
    assert "- Ours: nsqd v1.\n- Peer: nsqd v2." in facts
    assert facts_and_table[-3:] == table(found, has_peer=True).splitlines()


def test_the_section_hides_neither_cautions_nor_failures() -> None:
    found = outcome(RATE, load_average=1.5)
    found.failures.append("drain: ours, round 1: nsqd closed the connection")
    kept = section(found, NO_CONTEST, parse(["--binary", sys.executable]))
    assert "- Caution: the machine was busy before we began: load average 1.50." in kept
    assert "- Failed: drain: ours, round 1: nsqd closed the connection." in kept


def client_rate() -> Row:
    rates = {"emberq": [6e5], "pynsq": [1e4], "gnsq": [2e4], "ansq": [5e4]}
    return Row(work="client-batches", measure="rate", unit="msg/s", better="higher", values=rates)


def test_the_table_of_clients_ends_with_how_many_times_the_best_other_ours_is() -> None:
    *_, line = contest_table(Contest(rows=[client_rate()])).splitlines()
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        *("client-batches", "rate", "600 k msg/s", "10.0 k msg/s", "20.0 k msg/s", "50.0 k msg/s", "12.00 x")
    ]


def test_a_run_of_clients_alone_shows_no_empty_table_of_servers() -> None:
    contest = Contest(rows=[client_rate()], failures=["client-batches: gnsq, round 2: a worker process died"])
    options = parse(["--binary", sys.executable, "--clients"])
    assert tables(outcome(), contest, options) == [contest_table(contest)]
    assert "- Failed: client-batches: gnsq, round 2: a worker process died." in section(outcome(), contest, options)
    kept = json.loads(document(outcome(), contest, options))
    assert kept["clients"][0]["ratio"] == 12.0
    assert kept["failures"] == contest.failures


def test_progress_is_one_line_a_run_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream, rounds=3)
    progress.began(work="mpub", side="ours", round_number=2)
    progress.ended([Metric("rate", 1e6, "msg/s", "higher")])
    progress.close()
    assert stream.getvalue() == "mpub                    ours     round 2/3  rate 1.00 M msg/s\n"
