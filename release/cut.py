"""Makes a release of the tree, or says why it is not ready: version, changelog and tag in one step.

    python -m release.cut check 0.2.0     every reason against it; `make release` asks before it runs the tests
    python -m release.cut make 0.2.0      the commit and the tag v0.2.0, in this clone alone
    python -m release.cut verify v0.2.0   whether the tag belongs to the tree; the workflow asks before it publishes

The version stands in `src/emberq/__init__.py`, and in the files that tell users which image or wheel to take. What is
new stands in CHANGELOG.md under "Unreleased", and gets the version as its heading. Pushing the tag is left to a person:
it is what publishes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

BRANCH = "main"
UNRELEASED = "## Unreleased\n"
VERSION_FILE = "src/emberq/__init__.py"
VERSIONED = {
    VERSION_FILE: ('__version__ = "{}"',),
    "deploy/compose.yaml": ("image: emberq:{}\n",),
    "deploy/kubernetes/kustomization.yaml": ("newTag: {}\n",),
    "docs/DEPLOYMENT.md": ("emberq:{}", "emberq-{}-"),
}
"""The files that name the version, and the words around it."""


class NotReady(Exception):
    """The reasons against a release, one a line."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A clone of the repository."""

    root: Path

    @property
    def version(self) -> str:
        (found,) = re.findall(r'^__version__ = "(.*)"$', self.read(VERSION_FILE), re.MULTILINE)
        return str(found)

    @property
    def changelog(self) -> str:
        return self.read("CHANGELOG.md")

    @property
    def tags(self) -> set[str]:
        return set(self.git("tag", "--list", "v*").split())

    def news(self, heading: str) -> str:
        """What the changelog tells under a heading of the second level; empty if there is no such heading."""
        _, _, rest = self.changelog.partition(heading)
        return rest.partition("\n## ")[0].strip()

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text, encoding="utf-8")

    def git(self, *words: str, typed: str | None = None) -> str:
        done = subprocess.run(("git", *words), cwd=self.root, input=typed, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotReady(f"git {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()


def check(tree: Tree, version: str) -> None:
    """Raise NotReady with every reason against a release of this version."""
    reasons = [*_against_version(tree, version), *_against_changelog(tree, version), *_against_tree(tree)]
    if reasons:
        raise NotReady("\n".join(reasons))


def make(tree: Tree, version: str, *, today: date) -> str:
    """Write the version and the changelog, commit them, and set the tag; the tag."""
    check(tree, version)
    news = tree.news(UNRELEASED)
    old = tree.version
    for path, patterns in VERSIONED.items():
        text = tree.read(path)
        for pattern in patterns:
            text = text.replace(pattern.format(old), pattern.format(version))
        tree.write(path, text)
    heading = f"## {version} ({today.isoformat()})\n"
    tree.write("CHANGELOG.md", tree.changelog.replace(UNRELEASED, f"{UNRELEASED}\n{heading}", 1))
    tree.git("commit", "--quiet", "--all", "--message", f"Release {version}")
    # Lines that begin with # are headings here, not comments.
    tree.git(
        "tag", "--annotate", "--cleanup=verbatim", "--file=-", f"v{version}", typed=f"emberq {version}\n\n{news}\n"
    )
    return f"v{version}"


def verify(tree: Tree, tag: str) -> None:
    """Raise NotReady unless the tree is the one that the tag names."""
    if tag != f"v{tree.version}":
        raise NotReady(f"the tag is {tag}, and the version of the tree is {tree.version}")
    if not tree.news(f"## {tree.version} ("):
        raise NotReady(f"CHANGELOG.md tells nothing of {tree.version}")


def _against_version(tree: Tree, version: str) -> Iterator[str]:
    try:
        wanted = Version(version)
    except InvalidVersion:
        yield f"{version!r} is no version; say for example: make release VERSION=0.2.0"
        return
    if str(wanted) != version or wanted.local or wanted.is_devrelease:
        yield f"{version} is not a version to release; {wanted.base_version} is"
    if f"v{version}" in tree.tags:
        yield f"there is a tag v{version} already"
    elif wanted < Version(tree.version):
        yield f"{version} is older than {tree.version}, the version of the tree"
    for path, patterns in VERSIONED.items():
        if not all(pattern.format(tree.version) in tree.read(path) for pattern in patterns):
            yield f"{path} does not name the version {tree.version}"


def _against_changelog(tree: Tree, version: str) -> Iterator[str]:
    if not tree.news(UNRELEASED):
        yield 'CHANGELOG.md has nothing under "Unreleased"'
    if f"## {version} (" in tree.changelog:
        yield f"CHANGELOG.md has {version} already"


def _against_tree(tree: Tree) -> Iterator[str]:
    if (branch := tree.git("branch", "--show-current")) != BRANCH:
        yield f"this is the branch {branch or 'of no name'}; releases are made of {BRANCH}"
    if tree.git("status", "--porcelain"):
        yield "there are changes that are not committed"


def main(words: Sequence[str] | None = None, *, root: Path = Path(__file__).parent.parent) -> int:
    """Do what the first word says; the exit status."""
    tree = Tree(root)
    given = sys.argv[1:] if words is None else list(words)
    try:
        match given:
            case ["check", version]:
                check(tree, version)
            case ["make", version]:
                tag = make(tree, version, today=date.today())  # noqa: DTZ011 - the day of the person who releases
                print(f"Made {tag}. To publish it: git push --atomic origin {BRANCH} {tag}")
            case ["verify", tag]:
                verify(tree, tag)
            case _:
                print("Usage: python -m release.cut check|make VERSION, or: verify TAG", file=sys.stderr)
                return 2
    except NotReady as reasons:
        print("Not ready for a release:", *str(reasons).splitlines(), sep="\n- ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
