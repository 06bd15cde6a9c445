"""Workflows and the settings of pre-commit: they fit their schemas, and do what the Makefile does."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PRE_COMMIT = ROOT / ".pre-commit-config.yaml"
WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}


def jobs(workflow: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOWS[workflow].read_text())["jobs"]
    return found


def run(*words: str) -> None:
    command = (sys.executable, "-m", *words)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile, those of its prerequisites not included."""
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines.splitlines()]


def test_workflows_fit_their_schema() -> None:
    paths = [str(path) for path in WORKFLOWS.values()]
    run("check_jsonschema", "--builtin-schema", "vendor.github-workflows", *paths)


def test_what_renews_the_actions_fits_its_schema() -> None:
    run("check_jsonschema", "--builtin-schema", "vendor.dependabot", str(ROOT / ".github" / "dependabot.yml"))


def test_an_action_is_the_commit_that_was_looked_at() -> None:
    """A tag can be moved to other code, which would then publish releases."""
    for path in WORKFLOWS.values():
        used = re.findall(r"uses: (.*)$", path.read_text(), re.MULTILINE)
        assert used
        assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v[\d.]+", line)] == []


def test_all_pythons_that_are_claimed_are_tested() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    claimed = re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)
    assert jobs("test")["test"]["strategy"]["matrix"]["python-version"] == claimed


def test_workflows_make_targets_that_exist() -> None:
    commands = [
        step["run"] for name in WORKFLOWS for job in jobs(name).values() for step in job["steps"] if "run" in step
    ]
    named = {
        target for command in commands for target in re.findall(r"^make (?:PYTHON=\S+ )?(\S+)", command, re.MULTILINE)
    }
    assert {"check", "site", "test-without-spark", "test-spark", "wheel"} == named
    assert [target for target in named if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


def test_only_jobs_that_publish_may_show_who_they_are() -> None:
    for name, path in WORKFLOWS.items():
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        with_identity = {job for job, found in jobs(name).items() if "id-token" in found.get("permissions", {})}
        assert with_identity == ({"publish", "site"} if name == "release" else set())


def test_nothing_is_published_before_everything_is_built_and_without_a_tag() -> None:
    publish = jobs("release")["publish"]
    assert publish["if"] == "github.ref_type == 'tag'"
    assert set(publish["needs"]) == {"source", "wheels"}
    assert any("release.cut verify" in step.get("run", "") for step in jobs("release")["source"]["steps"])


def test_pre_commit_does_what_make_check_does() -> None:
    run("pre_commit", "validate-config", str(PRE_COMMIT))
    hooks = [hook["entry"] for source in yaml.safe_load(PRE_COMMIT.read_text())["repos"] for hook in source["hooks"]]
    assert hooks == recipe("lint") + recipe("house") + recipe("types")


@pytest.mark.parametrize("target", ["wheel", "release", "site"])
def test_the_targets_are_listed_by_make(target: str) -> None:
    assert re.search(rf"^{target}:.*## ", MAKEFILE, re.MULTILINE)
    (phony,) = re.findall(r"^\.PHONY:((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert target in phony.split()
