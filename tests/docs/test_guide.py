"""The runner of guides notices what is wrong with a guide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.guide import Session, read_blocks, run_script, run_tests


def guide(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "GUIDE.md"
    path.write_text(text)
    return path


def session_of(tmp_path: Path, text: str) -> None:
    session = Session()
    try:
        for block in read_blocks(guide(tmp_path, text), replacements={}):
            session.run(block)
    finally:
        session.close()


def test_blocks_are_found_with_their_kind_line_and_addresses(tmp_path: Path) -> None:
    text = "# A guide\n\n```python\na = 'x:1'\n```\n\n```py\nnot ours\n```\n\n```python script\nb\n```\n"
    blocks = read_blocks(guide(tmp_path, text), replacements={"x:1": "y:2"})
    assert [(block.kind, block.line, block.code) for block in blocks] == [("", 4, "a = 'y:2'\n"), ("script", 12, "b\n")]


def test_names_stay_and_await_may_stand_at_the_top_level(tmp_path: Path) -> None:
    text = "```python\nimport asyncio\nname = 1\n```\n```python\nawait asyncio.sleep(0)\nassert name == 1\n```\n"
    session_of(tmp_path, text)


def test_a_block_that_raises_names_its_line_in_the_guide(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        session_of(tmp_path, "text\n\n```python\nfine = 1\n1 / 0\n```\n")
    assert raised.traceback[-1].lineno + 1 == 5


def test_other_output_than_promised_is_noticed(tmp_path: Path) -> None:
    session_of(tmp_path, "```python\nprint(1)  #> 1\n```\n")
    with pytest.raises(AssertionError, match=r"GUIDE\.md:2 prints something else"):
        session_of(tmp_path, "```python\nprint(2)  #> 1\n```\n")


def test_scripts_and_tests_that_fail_are_noticed(tmp_path: Path) -> None:
    text = "```python script\nraise SystemExit('no')\n```\n```python test\ndef test_x():\n    assert False\n```\n"
    script, tests = read_blocks(guide(tmp_path, text), replacements={})
    with pytest.raises(AssertionError, match="ended with 1"):
        run_script(script, tmp_path)
    with pytest.raises(AssertionError, match="ended with 1"):
        run_tests(tests, tmp_path)
