"""Everything that docs/ADMIN.md has its readers type works as it says, against a real cluster."""

from __future__ import annotations

from pathlib import Path

from emberq.embedded import EmbeddedThread
from tests.docs.shell import read_shell_blocks, run_shell_block
from tests.support.admin_rig import of_cluster
from tests.support.command import require_command
from tests.support.waiting import wait_until

GUIDE = Path(__file__).parents[2] / "docs" / "ADMIN.md"
UNTIL_IT_IS_KNOWN = "until curl -s 'http://{}/api/topics' | grep -q orders; do sleep 0.1; done;"
"""Readers wait a second for the nsqd to register its topic; a machine busy with other tests may take longer."""


def test_the_admin_guide_does_what_it_says(tmp_path: Path) -> None:
    require_command("curl")
    with EmbeddedThread() as nsq, of_cluster(nsq) as admin:
        address = "{}:{}".format(*admin.address)
        replacements = {
            "sleep 1;": UNTIL_IT_IS_KNOWN.format(address),
            "127.0.0.1:4171": address,
            "127.0.0.1:4161": nsq.lookupd_http_addresses[0],
            "127.0.0.1:4151": nsq.nsqd_http_addresses[0],
        }
        blocks = read_shell_blocks(GUIDE.read_text(encoding="utf-8"), replacements=replacements)
        assert len(blocks) == 4
        wait_until(lambda: bool(admin.get("/api/nodes").json()["nodes"]))  # the nsqd registers by itself
        for block in blocks:
            run_shell_block(block, tmp_path)
