"""A hook of mkdocs: the pages of the site that have no file in docs, and the links between pages and the repository.

The documents are read on two sides: in the repository, where paths lead from file to file, and on the site, which has
only pages. So that each text stands in one file alone,

- the start page and the tutorial are the two halves of README.md; changelog and contributing come from their files;
- the metrics are a section of OPERATIONS.md, a page of their own in the reference;
- a page `python/<module>.md` in the navigation is the reference of that module, made from its docstrings;
- a link to a file or folder that is no page leads to the repository, if mkdocs.yml knows its address. One that leads
  nowhere is a warning, and with `--strict` an error.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
from collections.abc import Iterator, Set
from itertools import pairwise
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

logger = logging.getLogger("mkdocs.hooks.site_pages")

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
TUTORIAL_HEADING = "## Try it\n"
AFTER_TUTORIAL = "## Where things are\n"
METRICS_HEADING = "### Every metric\n"

FROM_ROOT = {"index.md": "README.md", "tutorial.md": "README.md"}
FROM_ROOT |= {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
"""Pages that are made of files outside docs: where their text, and so the links in it, comes from."""

FENCED = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
FURTHER_WORDS = re.compile(r"\A(```\w+) [^\n]*")
"""Behind the language of a block: they tell our tests how to run it, and mkdocs would not take it for a block."""
LISTED_MODULE = re.compile(r" *[\w/]+ {2,}\S")
LINK = re.compile(r"(!?)\[([^\]\[]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that have no file in docs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before, tutorial, after = _split(readme, TUTORIAL_HEADING, AFTER_TUTORIAL)
    pages = {
        "index.md": before + after,
        "tutorial.md": tutorial.replace(TUTORIAL_HEADING, "# Try it\n"),
        "metrics.md": _metrics((ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")),
        "reference/index.md": _list_of_commands(files),
    }
    pages |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
    pages |= {uri: _reference(module) for uri, module in _modules(config.nav)}
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of a page lead to other pages, or to the repository."""
    return lead_links(markdown, page.file.src_uri, pages=set(files.src_uris), repository=config.repo_url or "")


def lead_links(markdown: str, uri: str, *, pages: Set[str], repository: str) -> str:
    """The text of a page, with links that lead to `pages`, or to the address of the repository, if there is one."""
    at = posixpath.dirname(FROM_ROOT.get(uri, f"docs/{uri}"))

    def lead(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, mark, anchor = target.partition("#")
        in_repository = posixpath.normpath(posixpath.join(at, path))
        found = _page(in_repository, pages)
        if found is not None:
            return f"{picture}[{text}]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{mark}{anchor})"
        if not (ROOT / in_repository).exists():
            logger.warning("%s has a link to %s, which is not in the repository", uri, target)
        elif repository:
            return f"{picture}[{text}]({repository.rstrip('/')}/tree/main/{in_repository})"
        return f"`{text.strip('`')}`"

    parts = _parts(markdown)
    return "".join(FURTHER_WORDS.sub(r"\1", part) if is_code else LINK.sub(lead, part) for is_code, part in parts)


def _page(in_repository: str, pages: Set[str]) -> str | None:
    """The page, or picture, that a path of the repository is on the site."""
    for uri, source in FROM_ROOT.items():
        if source == in_repository:
            return uri
    if not in_repository.startswith("docs/"):
        return None
    uri = in_repository.removeprefix("docs/")
    return next((each for each in (uri, f"{uri}/index.md") if each in pages), None)


def _parts(markdown: str) -> Iterator[tuple[bool, str]]:
    """The text, cut at its blocks of code: whether a part is one, and the part."""
    end = 0
    for block in FENCED.finditer(markdown):
        yield False, markdown[end : block.start()]
        yield True, block[0]
        end = block.end()
    yield False, markdown[end:]


def _split(text: str, *headings: str) -> list[str]:
    """The text, cut before each of the headings."""
    places = [0, *(text.index(f"\n{heading}") + 1 for heading in headings), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def _metrics(operations: str) -> str:
    """The section that lists all metrics, as a page."""
    _, section = _split(operations, METRICS_HEADING)
    section = section.removeprefix(METRICS_HEADING)
    return "# Every metric\n" + re.split(r"^##", section, maxsplit=1, flags=re.MULTILINE)[0]


def _list_of_commands(files: Files) -> str:
    names = sorted(posixpath.basename(file.src_uri) for file in files if file.src_uri.startswith("reference/"))
    rows = "\n".join(f"- [{name.removesuffix('.md').replace('-', ' ')}]({name})" for name in names)
    return f"# Commands\n\nEvery flag, and every key of the configuration files:\n\n{rows}\n"


def _reference(module: str) -> str:
    """The page of a module: its docstring, and what its `__all__` lists, which mkdocstrings describes."""
    path = SOURCE.joinpath(*module.split("."))
    init = path / "__init__.py"
    # It is not imported: it may need Spark.
    tree = ast.parse((init if init.exists() else path.with_suffix(".py")).read_text(encoding="utf-8"))
    parts = [f"# {module}", *_public_paragraphs(ast.get_docstring(tree) or "")]
    # Of a function and a module with the same name, mkdocstrings would take the module.
    twice = {name for name in _exported(tree) if (path / f"{name}.py").exists()}
    parts += [f"::: {module}.{name}{f'.{name}' if name in twice else ''}" for name in _exported(tree)]
    return "\n\n".join(parts) + "\n"


def _public_paragraphs(docstring: str) -> Iterator[str]:
    """Without the list of the modules within a package, which are internal."""
    for paragraph in docstring.split("\n\n"):
        if not all(LISTED_MODULE.match(line) for line in paragraph.splitlines()):
            yield paragraph


def _exported(tree: ast.Module) -> list[str]:
    """What the `__all__` of a module lists."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(statement.value) if not name.startswith("_")]
    raise LookupError("a public module has an __all__")


def _modules(nav: Any) -> Iterator[tuple[str, str]]:
    """The pages of Python modules in the navigation, and the modules."""
    if isinstance(nav, list):
        for each in nav:
            yield from _modules(each)
    elif isinstance(nav, dict):
        for each in nav.values():
            yield from _modules(each)
    elif isinstance(nav, str) and nav.startswith("python/"):
        yield nav, nav.removeprefix("python/").removesuffix(".md")
