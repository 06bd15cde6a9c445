"""A daemon's command line ends in options or in the right exit."""

from __future__ import annotations

import logging
import platform
import re
from pathlib import Path

import pytest

from emberq.base.log import LogLevel
from emberq.base.program import Finished, read_options, version_line
from emberq.nsqd.options import SETTINGS, NsqdOptions

pytestmark = pytest.mark.usefixtures("process_as_before")

TIME = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"


def read(*argv: str) -> NsqdOptions:
    return read_options(SETTINGS, NsqdOptions, argv)


def status_of(*argv: str) -> int:
    with pytest.raises(Finished) as caught:
        read(*argv)
    return caught.value.status


def test_flags_become_options() -> None:
    assert read("--mem-queue-size=5", "ignored") == NsqdOptions(mem_queue_size=5)


def test_logging_is_set_up_as_the_options_say(capsys: pytest.CaptureFixture[str]) -> None:
    options = read("--log-prefix=[x] ", "--log-level=warn")
    assert options.log_level is LogLevel.WARN
    logging.getLogger("emberq.x").info("not shown")
    logging.getLogger("emberq.x").warning("shown")
    assert re.fullmatch(rf"\[x\] {TIME} WARNING: shown\n", capsys.readouterr().err)


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert version_line("nsqd") == f"nsqd v1.3.0-emberq (built w/python{platform.python_version()})"
    assert status_of("--version") == 0
    assert capsys.readouterr() == (version_line("nsqd") + "\n", "")


def test_help_goes_to_standard_output_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("-h") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("Usage of nsqd:\n")
    assert all(f"--{setting.flag}" in captured.out for setting in SETTINGS)


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("-nope", "flag provided but not defined: -nope"),
        ("--msg-timeout=5", 'invalid value "5" for flag -msg-timeout: parse error'),
        ("--worker-id=5", 'invalid boolean value "5" for -worker-id: parse error'),
        (
            "--tls-required=foo",
            'invalid boolean value "foo" for -tls-required: must be one of true, false, tcp-https',
        ),
        (
            "--tls-min-version=ssl3.0",
            'invalid value "ssl3.0" for flag -tls-min-version: unknown tlsVersionOption "ssl3.0"',
        ),
    ],
)
def test_a_mistake_is_named_without_the_usage_with_status_2(
    capsys: pytest.CaptureFixture[str], flag: str, complaint: str
) -> None:
    assert status_of(flag) == 2
    assert capsys.readouterr().err == f"{complaint}\n  nsqd --help lists all flags.\n"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--config=/no/file"], "failed to load config file /no/file - No such file or directory"),
        (["--e2e-processing-latency-percentile=x"], "Could not parse: x"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_fatal_line_with_status_1(
    capsys: pytest.CaptureFixture[str], argv: list[str], complaint: str
) -> None:
    assert status_of(*argv) == 1
    assert re.fullmatch(rf"\[nsqd\] {TIME} FATAL: {re.escape(complaint)}\n", capsys.readouterr().err)


def test_a_key_that_means_nothing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text("mem_queue_sise = 5\nmem_queue_size = 6\n")
    assert read(f"--config={config}").mem_queue_size == 6
    assert capsys.readouterr().err.endswith("WARNING: config file: mem_queue_sise is not a setting of nsqd, ignored\n")
