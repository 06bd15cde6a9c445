"""Everything that docs/JOURNAL.md has its readers type works as it says, against a real nsqd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emberq.embedded import EmbeddedThread
from tests.docs.guide import read_blocks, run_script
from tests.docs.shell import is_as_promised, read_shell_blocks, run_shell_block
from tests.support.command import require_command
from tests.support.embedded import Broker
from tests.support.waiting import wait_until

GUIDE = Path(__file__).parents[2] / "docs" / "JOURNAL.md"


def test_the_journal_guide_does_what_it_says(tmp_path: Path) -> None:
    require_command("curl")
    data_path = tmp_path / "data"
    # Without an nsqlookupd, until whose answer a new topic would keep its messages from channels.
    with EmbeddedThread(data_path=data_path, journal=True, with_lookupd=False) as nsq:
        replacements = {
            "127.0.0.1:4151": nsq.nsqd_http_addresses[0],
            "/var/lib/nsqd": str(data_path / "nsqd-0"),
        }
        text = GUIDE.read_text(encoding="utf-8")
        shell_blocks = read_shell_blocks(text, replacements=replacements)
        assert len(shell_blocks) >= 8
        for block in shell_blocks:
            run_shell_block(block, tmp_path)
        (script,) = read_blocks(GUIDE, replacements=replacements)
        assert script.kind == "script"
        run_script(script, tmp_path)
        folder = data_path / "nsqd-0" / "orders.journal"
        Broker(nsq).take("orders", 1, channel="mail")  # so that the channel has changed since its file was written
        wait_until(lambda: any(folder.glob("cursors/mail.*.acks")))
        files = _names(folder)
    files |= _names(folder)  # some are there while nsqd runs, others after it has stopped
    (drawing,) = re.findall(r"^<data-path>/orders.journal/\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert {_without_chance(line.split()[0]) for line in drawing.splitlines()} <= files


def _names(folder: Path) -> set[str]:
    return {_without_chance(str(path.relative_to(folder))) for path in folder.rglob("*")}


def _without_chance(name: str) -> str:
    return re.sub(r"\.[0-9a-f]{8}\.", ".….", name)


def test_a_promise_may_leave_out_what_cannot_be_known() -> None:
    assert is_as_promised('{"a":12,"b":"x.y"}', '{"a":…,"b":"x.y"}')
    assert not is_as_promised('{"a":12,"b":"xzy"}', '{"a":…,"b":"x.y"}')
    assert not is_as_promised("OK", "OKAY")


def test_a_block_that_breaks_its_promise_is_noticed(tmp_path: Path) -> None:
    good, silent, wrong = read_shell_blocks(
        "```sh\necho 1\n#> 1\n```\n```sh\necho 1\n```\n```sh\nfalse\n```\n", replacements={}
    )
    run_shell_block(good, tmp_path)
    for block in (silent, wrong):
        with pytest.raises(AssertionError):
            run_shell_block(block, tmp_path)
