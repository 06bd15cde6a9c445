"""`make release`: what it refuses, and what it makes."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path

import pytest

from emberq import __version__
from release.cut import VERSIONED, NotReady, Tree, check, main, make, verify

ROOT = Path(__file__).parents[2]
CHANGELOG = """\
# Changelog

## Unreleased

### Added
- Something new.

## 0.0.9 (2025-01-31)

### Added
- Something old.
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A clone with the files of this one that name the version."""
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "A. Person")
        monkeypatch.setenv(f"{name}_EMAIL", "person@example.com")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for path in VERSIONED:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    tree = Tree(tmp_path)
    tree.write("CHANGELOG.md", CHANGELOG)
    tree.git("init", "--quiet", "--initial-branch=main")
    tree.git("add", ".")
    tree.git("commit", "--quiet", "--message=Begin")
    return tree


def reasons(tree: Tree, version: str) -> list[str]:
    with pytest.raises(NotReady) as caught:
        check(tree, version)
    return str(caught.value).splitlines()


def test_a_release_is_a_commit_with_version_and_changelog_and_a_tag(tree: Tree) -> None:
    assert make(tree, "7.1.0", today=date(2026, 2, 3)) == "v7.1.0"
    assert tree.version == "7.1.0"
    for path in VERSIONED:
        assert "7.1.0" in tree.read(path)
        assert __version__ not in tree.read(path)
    assert "## Unreleased\n\n## 7.1.0 (2026-02-03)\n\n### Added\n- Something new.\n\n## 0.0.9" in tree.changelog
    assert tree.git("log", "-1", "--format=%s") == "Release 7.1.0"
    assert tree.git("status", "--porcelain") == ""
    assert tree.git("rev-parse", "v7.1.0^{commit}") == tree.git("rev-parse", "HEAD")
    told = tree.git("tag", "--list", "--format=%(contents)", "v7.1.0")
    assert told == "emberq 7.1.0\n\n### Added\n- Something new."


def test_the_first_release_may_have_the_version_that_the_tree_has(tree: Tree) -> None:
    assert make(tree, __version__, today=date(2026, 2, 3)) == f"v{__version__}"
    verify(tree, f"v{__version__}")


@pytest.mark.parametrize("version", ["", "next", "7.1.0+here", "7.1.0.dev1", "v7.1.0", "7.01.0"])
def test_what_is_not_a_version_to_release_is_refused(tree: Tree, version: str) -> None:
    assert len(reasons(tree, version)) == 1


def test_a_release_is_made_once_and_versions_only_grow(tree: Tree) -> None:
    make(tree, "7.1.0", today=date(2026, 2, 3))
    tree.write("CHANGELOG.md", tree.changelog.replace("## Unreleased\n", "## Unreleased\n\n- More.\n"))
    tree.git("commit", "--quiet", "--all", "--message=More")
    assert reasons(tree, "7.1.0") == ["there is a tag v7.1.0 already", "CHANGELOG.md has 7.1.0 already"]
    assert reasons(tree, "7.0.9") == ["7.0.9 is older than 7.1.0, the version of the tree"]
    assert make(tree, "7.1.1", today=date(2026, 2, 4)) == "v7.1.1"


def test_a_tree_that_is_not_ready_is_refused_with_all_reasons(tree: Tree) -> None:
    tree.write("CHANGELOG.md", CHANGELOG.replace("### Added\n- Something new.\n\n", ""))
    tree.write("deploy/compose.yaml", "services: {}\n")
    tree.git("switch", "--quiet", "--create=other")
    assert reasons(tree, "7.1.0") == [
        "deploy/compose.yaml does not name the version " + __version__,
        'CHANGELOG.md has nothing under "Unreleased"',
        "this is the branch other; releases are made of main",
        "there are changes that are not committed",
    ]
    with pytest.raises(NotReady):
        make(tree, "7.1.0", today=date(2026, 2, 3))
    assert tree.version == __version__
    assert tree.tags == set()


def test_a_tag_must_belong_to_the_tree_that_is_published(tree: Tree) -> None:
    with pytest.raises(NotReady, match=rf"the tag is v7\.1\.0, and the version of the tree is {__version__}"):
        verify(tree, "v7.1.0")
    with pytest.raises(NotReady, match="tells nothing"):
        verify(tree, f"v{__version__}")
    make(tree, "7.1.0", today=date(2026, 2, 3))
    verify(tree, "v7.1.0")


def test_the_command_says_what_is_wrong_and_how_to_publish(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "0.0.1"], root=tree.root) == 1
    assert capsys.readouterr().err == (
        f"Not ready for a release:\n- 0.0.1 is older than {__version__}, the version of the tree\n"
    )
    assert main([], root=tree.root) == 2
    assert main(["make", "7.1.0"], root=tree.root) == 0
    assert "git push --atomic origin main v7.1.0" in capsys.readouterr().out


def test_a_folder_without_a_repository_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="git status"):
        Tree(tmp_path).git("status", "--porcelain")
