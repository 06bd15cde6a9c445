"""Everything that the guides to dead letters and to publishing once have their readers type works as they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emberq.embedded import EmbeddedThread
from tests.docs.guide import IN_NO_HURRY, Block, read_blocks, run_script
from tests.docs.shell import ShellBlock, read_shell_blocks, run_shell_block
from tests.support.command import require_command

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(guide: Path, *, replacements: dict[str, str]) -> list[ShellBlock | Block]:
    """Shell and Python blocks in the order in which a reader meets them."""
    text = guide.read_text(encoding="utf-8")
    blocks: list[ShellBlock | Block] = [*read_shell_blocks(text, replacements=replacements)]
    blocks += read_blocks(guide, replacements=replacements)
    return sorted(blocks, key=lambda block: block.line)


@pytest.mark.parametrize("name", ["DEAD-LETTERS.md", "IDEMPOTENT-PUBLISH.md"])
def test_the_guide_does_what_it_says(tmp_path: Path, name: str) -> None:
    require_command("curl")
    with EmbeddedThread(data_path=tmp_path / "data", journal=True) as nsq:
        addresses = {"127.0.0.1:4150": nsq.nsqd_tcp_addresses[0], "127.0.0.1:4151": nsq.nsqd_http_addresses[0]}
        blocks = blocks_of(DOCS / name, replacements=addresses | IN_NO_HURRY)
        assert len(blocks) >= 2
        for block in blocks:
            if isinstance(block, ShellBlock):
                run_shell_block(block, tmp_path)
            else:
                run_script(block, tmp_path)


def test_the_guides_link_to_pages_that_exist() -> None:
    for name in ("DEAD-LETTERS.md", "IDEMPOTENT-PUBLISH.md"):
        for page in re.findall(r"\]\(([A-Z-]+\.md)\)", (DOCS / name).read_text(encoding="utf-8")):
            assert (DOCS / page).exists(), page
