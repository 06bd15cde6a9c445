"""A tool's command line ends in a run or in the right exit."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from emberq.base.program import ToolError, ToolLineFormatter, run_tool
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.client.error import ConnectError

pytestmark = pytest.mark.usefixtures("process_as_before")

TIME = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d"
_GROUP = Group("Things")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    thing: str = _GROUP.text("", "a thing")

    def validated(self) -> Options:
        if not self.thing:
            raise OptionsError("--thing required")
        return self


TABLE = SettingTable("nsq_thing", options_class=Options, command=(VERSION,))


class Work:
    """What the tool does: it notes its options, and perhaps fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.things: list[str] = []
        self._failure = failure

    async def __call__(self, options: Options, stop_asked: asyncio.Event) -> None:
        self.things.append(options.thing)
        if self._failure is not None:
            raise self._failure


def status_of(*argv: str, work: Work | None = None, takes_arguments: bool = True) -> int:
    return run_tool(TABLE, Options, work or Work(), argv, takes_arguments=takes_arguments, failures=(ConnectError,))


def test_flags_become_options_and_words_behind_them_are_ignored() -> None:
    work = Work()
    assert status_of("--thing=x", "ignored", work=work) == 0
    assert work.things == ["x"]


def test_version_is_printed_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--version") == 0
    assert capsys.readouterr() == (f"nsq_thing v1.3.0-emberq (built w/python{platform.python_version()})\n", "")


def test_help_goes_to_standard_output_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--help") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("Usage of nsq_thing:\n")
    assert "--thing" in captured.out


def test_a_mistake_is_named_without_the_usage_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--nope") == 2
    assert capsys.readouterr().err == "flag provided but not defined: -nope\n  nsq_thing --help lists all flags.\n"


def test_a_mistyped_flag_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--thng=1") == 2
    assert "-thng\n  Did you mean --thing? nsq_thing --help" in capsys.readouterr().err


def test_options_that_cannot_work_are_one_line_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    work = Work()
    assert status_of(work=work) == 1
    assert re.fullmatch(rf"{TIME} --thing required\n", capsys.readouterr().err)
    assert work.things == []


@pytest.mark.parametrize("failure", [ToolError("it broke"), ConnectError("it", "broke")])
def test_a_failure_is_one_line_with_status_1(failure: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--thing=x", work=Work(failure)) == 1
    assert re.fullmatch(rf"{TIME} it:? broke\n", capsys.readouterr().err)


def test_words_behind_the_flags_can_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--thing=x", "one", "two", takes_arguments=False) == 1
    assert re.fullmatch(rf"{TIME} unknown arguments: \[one two\]\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("stop_signals", "number"),
    [((signal.SIGTERM,), signal.SIGTERM), ((signal.SIGHUP, signal.SIGTERM), signal.SIGHUP)],
)
def test_a_signal_asks_for_the_end_and_a_second_one_changes_nothing(
    stop_signals: Sequence[signal.Signals], number: signal.Signals
) -> None:
    async def work(options: Options, stop_asked: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        await stop_asked.wait()
        os.kill(os.getpid(), number)

    before = {each: signal.getsignal(each) for each in stop_signals}
    try:
        assert run_tool(TABLE, Options, work, ["--thing=x"], stop_signals=stop_signals) == 0
        os.kill(os.getpid(), number)  # to the end of the process
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_lines_of_the_library_say_how_grave_they_are_and_those_of_tools_do_not() -> None:
    def line(name: str, level: int, text: str) -> str:
        return ToolLineFormatter().format(logging.LogRecord(name, level, "", 0, text, (), None))

    assert re.fullmatch(rf"{TIME} hello", line("emberq.tools.nsq_tail", logging.ERROR, "hello"))
    assert re.fullmatch(rf"{TIME} WRN hello", line("emberq.client.consumer", logging.WARNING, "hello"))
    assert re.fullmatch(rf"{TIME} two\\nlines", line("emberq.tools.nsq_tail", logging.INFO, "two\nlines"))
