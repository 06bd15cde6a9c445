"""How commands that run Spark are stopped, shown without Spark: a process that stands for Java, and work that hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from emberq.base.child_process import await_end, descendants
from emberq.cli.spark_work import add_spark_flags, nsq_options
from emberq.cli.terminal import command_parser

TIMEOUT_S = 60.0

COMMAND = """
import argparse, subprocess, sys, threading, time
from emberq.cli.spark_work import in_thread
from emberq.cli.terminal import command_parser, run_command

JAVA = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); signal.pause()"

def java(**options):
    process = subprocess.Popen([sys.executable, "-c", JAVA], stdout=subprocess.PIPE, **options)
    process.stdout.readline()
    return process

{work}

async def command(arguments, terminal):
    return await in_thread(work, on_stop=lambda: terminal.note("stopping"), patience_s=lambda: {patience_s})

sys.exit(run_command(command_parser("test", "A test."), [], command))
"""

HANGING = """
def work(stopping):
    process = java()
    print("running", flush=True)
    process.wait()          # as a call of Spark: it ends when Java does
    print("Java is gone", flush=True)
"""
COMPLAINING = """
import logging

def work(stopping):
    process = java()
    print("running", flush=True)
    process.wait()
    logging.getLogger("emberq").warning("progress cannot be published")
"""
IN_GOOD_ORDER = """
def work(stopping):
    print("running", flush=True)
    stopping.wait()
    print("batch finished", flush=True)
"""
ABOUT_TO_START_JAVA = """
def work(stopping):
    print("running", flush=True)
    stopping.wait()
    time.sleep(0.3)         # as the import of PySpark
    process = java()
    process.wait()
    print("Java is gone", flush=True)
"""
HANGING_FOR_EVER = """
def work(stopping):
    print("running", flush=True)
    threading.Event().wait()
"""


def started(work: str, *, patience_s: float = 2.0) -> subprocess.Popen[str]:
    script = COMMAND.format(work=textwrap.dedent(work), patience_s=patience_s)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_work_that_does_not_end_is_broken_off_with_java(number: signal.Signals) -> None:
    with started(HANGING) as process:
        below = descendants(process.pid)
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, err) == (130, "Java is gone\n", "test: stopping\n")
        assert below
        assert await_end(below, timeout_s=0.0)


def test_work_that_is_broken_off_does_not_complain() -> None:
    with started(COMPLAINING, patience_s=0.0) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, err) == (130, "test: stopping\n")


def test_work_that_ends_by_itself_is_waited_for() -> None:
    with started(IN_GOOD_ORDER) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, err) == (130, "batch finished\n", "test: stopping\n")


def test_a_java_that_starts_after_the_patience_is_over_is_ended_too() -> None:
    with started(ABOUT_TO_START_JAVA, patience_s=0.0) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, err) == (130, "Java is gone\n", "test: stopping\n")


def test_work_that_nothing_can_end_does_not_keep_the_command_alive() -> None:
    with started(HANGING_FOR_EVER) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, err) == (130, "", "test: stopping\n")


# Where NSQ is, and what it is shown


def options_from(*flags: str) -> dict[str, str]:
    parser = command_parser("emberq try", "Try it.")
    add_spark_flags(parser)
    return nsq_options(parser.read(flags))


def test_without_a_secret_spark_is_told_where_nsq_is_and_nothing_else() -> None:
    assert options_from() == {"nsqd": "127.0.0.1:4151"}
    assert options_from("--lookupd-http-address=a:1", "--lookupd-http-address=b:1") == {"lookupd": "a:1,b:1"}


def test_spark_asks_by_https_as_the_flags_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = options_from(
        "--nsqd-http-address=a:4152", "--tls-root-ca-file=ca.pem", "--tls-cert=c.pem", "--tls-key=c.key"
    )
    files = {"tlsCaFile": "ca.pem", "tlsCertFile": "c.pem", "tlsKeyFile": "c.key"}
    assert given == {"nsqd": "a:4152", "tls": "true", **{name: str(tmp_path / file) for name, file in files.items()}}
    assert options_from("--tls") == {"nsqd": "127.0.0.1:4151", "tls": "true"}
    assert options_from("--tls-insecure") == {"nsqd": "127.0.0.1:4151", "tls": "true", "tlsVerify": "false"}


def test_secrets_for_spark_come_from_files_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("for nsqlookupds\n")
    monkeypatch.setenv("NSQ_AUTH_SECRET", "for nsqds")
    assert options_from("--lookupd-http-address=a:1", f"--lookupd-secret-file={path}") == {
        "lookupd": "a:1",
        "authSecret": "for nsqds",
        "lookupdSecret": "for nsqlookupds",
    }
