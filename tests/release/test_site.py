"""The documents as a site: built once, strictly, and looked at as a reader would."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.api import PUBLIC_MODULES, exported
from docs.site_pages import lead_links

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def read(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text(encoding="utf-8")


def navigation() -> dict[str, Any]:
    """The sections of the site, each with its pages."""
    # The file also has tags for mkdocs, which are of no interest here.
    (text,) = re.findall(r"^nav:\n(.*)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE | re.DOTALL)
    return {name: pages for section in yaml.safe_load(text) for name, pages in section.items()}


def pages_in(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [page for each in (part.values() if isinstance(part, dict) else part) for page in pages_in(each)]


def test_tutorial_guides_reference_and_explanation_are_apart() -> None:
    sections = navigation()
    assert list(sections) == ["Home", "Tutorial", "How-to", "Reference", "Explanation", "Project"]
    pages = [page for section in sections.values() for page in pages_in(section)]
    assert len(pages) == len(set(pages))
    in_docs = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert in_docs <= set(pages)


def test_start_page_and_tutorial_are_the_readme(site: Path) -> None:
    assert "What works today" in read(site, ".")
    assert "emberq pub greetings" not in read(site, ".")
    assert "emberq pub greetings" in re.sub("<[^>]*>", "", read(site, "tutorial"))


def test_every_public_name_is_in_the_reference_and_nothing_internal(site: Path) -> None:
    for module in PUBLIC_MODULES:
        page = read(site, f"python/{module}")
        names = [name for name in exported(import_module(module)) if not name.startswith("_")]
        anchors = set(re.findall(r' id="([\w.]+)"', page))
        assert [name for name in names if not anchors & {f"{module}.{name}", f"{module}.{name}.{name}"}] == []
        assert not re.search("worker_daemon|worker_process", page)


def test_every_metric_and_every_flag_can_be_found(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    texts: dict[str, str] = {}
    for entry in index:
        page = entry["location"].partition("#")[0]
        texts[page] = texts.get(page, "") + entry["text"]
    metrics = re.findall(r"^\| `((?:nsqd|process)_\w+)` ", (DOCS / "OPERATIONS.md").read_text(), re.MULTILINE)
    assert len(metrics) > 50
    assert [name for name in metrics if name not in texts["metrics/"]] == []
    for reference in (DOCS / "reference").glob("*.md"):
        flags = re.findall(r"^\| `(--[\w-]+)`", reference.read_text(), re.MULTILINE)
        assert flags
        assert [flag for flag in flags if flag not in texts[f"reference/{reference.stem}/"]] == []


def test_figures_of_the_comparison_are_those_that_were_measured() -> None:
    performance = (DOCS / "PERFORMANCE.md").read_text()
    section = (DOCS / "COMPARISON.md").read_text().partition("## Figures")[2]
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+ (?:[kM]/s|ms)) \| ([\d.]+ (?:[kM]/s|ms)) \|$", section, re.MULTILINE)
    assert len(rows) == 6
    assert [row for row in rows if f"| {row[0]} | {row[1]} |" not in performance] == []


# Links, one by one


PAGES = {"SPARK.md", "CLIENT.md", "reference/nsqd.md", "reference/index.md", "index.md", "images/a.png"}


def rewritten(link: str, *, page: str = "SPARK.md", repository: str = "") -> str:
    return lead_links(link, page, pages=PAGES, repository=repository)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("SPARK.md", "[a](CLIENT.md#producers)", "[a](CLIENT.md#producers)"),
        ("SPARK.md", "[a](reference)", "[a](reference/index.md)"),
        ("SPARK.md", "[a](#here)", "[a](#here)"),
        ("SPARK.md", "[a](https://example.com/x.md)", "[a](https://example.com/x.md)"),
        ("SPARK.md", "![a](images/a.png)", "![a](images/a.png)"),
        ("SPARK.md", "[a](../README.md)", "[a](index.md)"),
        ("reference/nsqd.md", "[a](../CLIENT.md)", "[a](../CLIENT.md)"),
        ("index.md", "[a](docs/CLIENT.md)", "[a](CLIENT.md)"),
        ("index.md", "[a](docs/reference/)", "[a](reference/index.md)"),
        ("SPARK.md", "[`examples`](../examples/spark)", "`examples`"),
        ("SPARK.md", "```python\n[a](nowhere.md)\n```", "```python\n[a](nowhere.md)\n```"),
        ("SPARK.md", "```python script\nx = 1\n```", "```python\nx = 1\n```"),
    ],
)
def test_a_link_leads_to_the_page(page: str, link: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    assert rewritten(link, page=page) == expected
    assert caplog.messages == []


def test_a_link_to_what_is_no_page_leads_to_the_repository_where_its_address_is_known() -> None:
    link = rewritten("[the file](../examples/spark/clickstream.toml)", repository="https://example.com/emberq/")
    assert link == "[the file](https://example.com/emberq/tree/main/examples/spark/clickstream.toml)"


def test_a_link_that_leads_nowhere_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rewritten("[a](../examples/no-such-file.toml)")
        rewritten("[a](NO-SUCH-PAGE.md)")
    assert caplog.messages == [
        "SPARK.md has a link to ../examples/no-such-file.toml, which is not in the repository",
        "SPARK.md has a link to NO-SUCH-PAGE.md, which is not in the repository",
    ]
