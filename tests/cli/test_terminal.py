"""How the subcommands for people speak and end."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
from collections.abc import Sequence

import pytest

from emberq.cli.terminal import (
    DONE,
    FAILED,
    INTERRUPTED,
    MISUSED,
    PIPE_CLOSED,
    Command,
    CommandError,
    CommandParser,
    Terminal,
    command_parser,
    counted,
    run_command,
)
from emberq.client import AuthError, BadRequestError, ConnectError, HandshakeError, NsqError, PublishError
from emberq.http.client import HttpQueryError
from tests.cli.screen import Screen


def run(command: Command, *words: str, is_endless: bool = False) -> int:
    parser = command_parser("emberq try", "Try it.")
    return run_command(parser, words, command, is_endless=lambda _arguments: is_endless)


def failing(failure: BaseException) -> Command:
    async def command(_arguments: argparse.Namespace, _terminal: Terminal) -> int:
        raise failure

    return command


# Ending


def test_the_status_is_the_commands_own() -> None:
    async def command(_arguments: argparse.Namespace, _terminal: Terminal) -> int:
        return 7

    assert run(command) == 7


@pytest.mark.parametrize(("words", "status"), [(["--help"], DONE), (["--wrong"], MISUSED), (["--jso"], MISUSED)])
def test_help_and_mistakes_are_answered_without_running(
    words: Sequence[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(failing(AssertionError()), *words) == status
    captured = capsys.readouterr()
    assert "emberq try" in captured.out + captured.err


def try_parser() -> CommandParser:
    parser = command_parser("emberq try", "Try it.")
    parser.add_argument("topic")
    parser.add_argument("bodies", nargs="*", default=[])
    parser.add_argument("--rate", type=int, metavar="N")
    parser.add_argument("-n", type=int, dest="count")
    parser.add_argument("--file")
    return parser


@pytest.mark.parametrize(
    "words",
    [
        "t a b --rate 3 -n 5 --json",
        "t --rate=3 a -n=5 b --json",
        "--json t -n5 a --rate 3 b",
        "--rate 3 -n 5 --json -- t a b",
    ],
)
def test_flags_and_arguments_stand_in_any_order(words: str) -> None:
    arguments = try_parser().read(words.split())
    assert (arguments.topic, arguments.bodies, arguments.rate, arguments.count) == ("t", ["a", "b"], 3, 5)
    assert arguments.json


def test_what_begins_with_a_dash_can_be_an_argument_or_a_value() -> None:
    arguments = try_parser().read(["t", "-", "-5", "--file", "-", "--", "--rate", "-x"])
    assert (arguments.bodies, arguments.file) == (["-", "-5", "--rate", "-x"], "-")


@pytest.mark.parametrize(
    ("words", "complaint", "hint"),
    [
        (["t", "--rte=3"], "unknown flag --rte", "Did you mean --rate? "),
        (["t", "--colour"], "unknown flag --colour", ""),
        (["t", "--rate"], "--rate needs a value: N", ""),
        (["t", "--rate", "--json"], "--rate needs a value: N", ""),
        (["t", "--rate=x"], "argument --rate: invalid int value: 'x'", ""),
        ([], "the following arguments are required: topic", ""),
    ],
)
def test_a_mistake_is_named_with_the_nearest_flag_and_without_the_usage(
    words: list[str], complaint: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(try_parser(), words, failing(AssertionError())) == MISUSED
    if "--json" not in words:  # then it is JSON
        error = f"emberq try: {complaint}\n  {hint}emberq try --help lists all flags.\n"
        assert capsys.readouterr() == ("", error)


def test_a_mistake_is_json_for_those_who_asked_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(AssertionError()), "--json", "more", "and more") == MISUSED
    assert json.loads(capsys.readouterr().err)["error"] == "too many arguments: more and more"


def test_a_failure_says_what_happened_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(CommandError("no tea", hint="Boil water."))) == FAILED
    assert capsys.readouterr().err == "emberq try: no tea\n  Boil water.\n"


def test_with_json_a_failure_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(CommandError("no tea", hint="Boil water.")), "--json") == FAILED
    assert json.loads(capsys.readouterr().err) == {"error": "no tea", "hint": "Boil water."}


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (ConnectError("h:1", "refused"), "`emberq up` starts one"),
        (AuthError("E_AUTH_FAILED", "no"), "--auth-secret-file"),
        (PublishError("E_PUB_FAILED", "full"), "its log and /ping tell why"),
        (HttpQueryError("refused"), "its HTTP address"),
        (NsqError("odd"), "odd"),
        (PermissionError("not yours"), "not yours"),
    ],
)
def test_what_can_go_wrong_is_explained(failure: Exception, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(failure)) == FAILED
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (HandshakeError("h:1", "nsqd does not offer TLS, and going on without is not what was asked for"), "Leave the"),
        (HandshakeError("h:1", "certificate verify failed: certificate has expired"), "renewed"),
        (HandshakeError("h:1", "IP address mismatch, certificate is not valid for '10.0.0.1'"), "another name"),
        (BadRequestError("E_INVALID", "cannot MPUB in current state (TLS required)"), "takes only TLS: add --tls"),
        (HttpQueryError("cannot connect: [SSL: WRONG_VERSION_NUMBER] wrong version number"), "leave https:// away"),
    ],
)
def test_trouble_with_tls_has_a_hint_that_fits(
    failure: Exception, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(failing(failure)) == FAILED
    told = capsys.readouterr().err
    assert hint in told
    assert "emberq up" not in told


def test_what_was_logged_before_may_be_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async def command(_arguments: argparse.Namespace, _terminal: Terminal) -> int:
        log = logging.getLogger("emberq.client.x")
        log.warning("E_INVALID cannot SUB in current state (TLS required)")
        log.warning("another nsqd: connection refused")
        raise CommandError("no nsqd can be reached", hint="`emberq up` starts one")

    assert run(command) == FAILED
    assert "takes only TLS" in capsys.readouterr().err


def test_a_bug_is_not_explained_away() -> None:
    with pytest.raises(ZeroDivisionError):
        run(failing(ZeroDivisionError()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_command_which_cleans_up(number: signal.Signals) -> None:
    cleaned = []

    async def command(_arguments: argparse.Namespace, _terminal: Terminal) -> int:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)
        return DONE

    assert run(command) == INTERRUPTED
    assert run(command, is_endless=True) == (INTERRUPTED if number == signal.SIGINT else DONE)
    assert cleaned == [True, True]


def test_a_reader_that_went_away_is_no_error_to_speak_of(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(failing(BrokenPipeError())) == PIPE_CLOSED
    assert capfd.readouterr().err == ""


def test_what_libraries_log_is_noted_while_the_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    async def command(_arguments: argparse.Namespace, _terminal: Terminal) -> int:
        logging.getLogger("emberq.client.x").warning("lost %s", "nsqd\n")
        logging.getLogger("emberq.client.x").info("details")
        return DONE

    run(command)
    assert capsys.readouterr().err == "emberq try: lost nsqd\\n\n"
    run(command, "--verbose")
    assert "details" in capsys.readouterr().err
    assert not logging.getLogger("emberq").handlers


# Speaking


def test_results_are_lines_on_standard_output() -> None:
    out = Screen(is_terminal=False)
    terminal = Terminal("emberq try", out=out)
    terminal.write("text")
    terminal.write_json({"who": "Ünal", "n": 1})
    terminal.write_bytes(b"\xc3\xbc")
    assert out.text == 'text\n{"who":"Ünal","n":1}\nü\n'


def test_only_a_terminal_without_json_is_drawn_on() -> None:
    assert Terminal("x", out=Screen(), err=Screen()).is_rich
    assert not Terminal("x", as_json=True, out=Screen(), err=Screen()).is_rich
    assert not Terminal("x", out=Screen(is_terminal=False)).is_rich


def test_progress_is_shown_to_whoever_watches() -> None:
    err = Screen()
    terminal = Terminal("x", err=err)
    with terminal.progress("moving [1]", total=4) as progress:
        progress.advance(3)
        terminal.note("by the way")
        progress.advance()
    assert "moving [1]" in err.text
    assert "4/4" in err.text
    assert "x: by the way" in err.text


def test_progress_without_a_known_end_counts() -> None:
    err = Screen()
    with Terminal("x", err=err).progress("moving") as progress:
        progress.advance(1200)
    assert "1,200" in err.text


@pytest.mark.parametrize(("as_json", "is_terminal"), [(True, True), (False, False)])
def test_progress_that_nobody_watches_is_silent(as_json: bool, is_terminal: bool) -> None:
    err = Screen(is_terminal=is_terminal)
    with Terminal("x", as_json=as_json, err=err).progress("moving", total=4) as progress:
        progress.advance(4)
    assert err.text == ""


def test_counts_read_well() -> None:
    assert [counted(count, "message") for count in (0, 1, 1200)] == ["0 messages", "1 message", "1,200 messages"]
