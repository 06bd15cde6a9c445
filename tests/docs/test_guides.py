"""Every Python block of the guides runs against a real nsqd. A new guide joins by its name below."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.embedded import EmbeddedThread
from tests.docs.guide import IN_NO_HURRY, Session, read_blocks, run_script, run_service, run_tests
from tests.support.certificates import Authority

ROOT = Path(__file__).parents[2]
GUIDES = ("docs/CELERY.md", "docs/CLIENT.md", "docs/FRAMEWORKS.md", "docs/MIGRATION-FROM-OTHER-CLIENTS.md")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("guide", GUIDES)
def test_every_block_of_a_guide_runs(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    authority = Authority(tmp_path, "ca")
    with EmbeddedThread(**authority.issue("nsqd").options()) as nsq:
        replacements = {
            "127.0.0.1:4150": nsq.nsqd_tcp_addresses[0],
            "127.0.0.1:4151": nsq.nsqd_http_addresses[0],
            "127.0.0.1:4161": nsq.lookupd_http_addresses[0],
            "ca.pem": str(authority.path),
            **IN_NO_HURRY,
        }
        blocks = read_blocks(ROOT / guide, replacements=replacements)
        assert blocks
        session = Session()
        try:
            for block in blocks:
                match block.kind:
                    case "":
                        session.run(block)
                    case "script":
                        run_script(block, tmp_path)
                    case "service":
                        run_service(block, tmp_path, nsqd_http_address=nsq.nsqd_http_addresses[0])
                    case "test":
                        run_tests(block, tmp_path)
                    case unknown:
                        raise AssertionError(f"{block}: nobody knows how to run {unknown!r}")
        finally:
            session.close()
