"""What is wrong with a pipeline: all of it at once, each with the place where it stands and what to do about it.

A problem is found by its path, the keys that lead to it: `("sink", "counts", "from")`. Where the pipeline came from
a file, the path is turned into a line:

    clicks.toml:14: sink.counts.from: there is no source or view "per_minut"; did you mean "per_minute"?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emberq.spark.error import NsqSparkError

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    path: KeyPath
    text: str
    remedy: str = ""
    line_offset: int = 0
    """In a text of several lines: how far below the key's line."""

    def __str__(self) -> str:
        where = f"{'.'.join(self.path)}: " if self.path else ""
        return f"{where}{self.text}{self.remedy and f'; {self.remedy}'}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The file that a pipeline was read from, and the line of each of its keys."""

    file: str
    lines: Mapping[KeyPath, int]

    def line_of(self, path: KeyPath) -> int:
        """The line of a key, or of what surrounds it if it is not there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class PipelineError(NsqSparkError, ValueError):
    """A pipeline that cannot be run. The text has a line for each problem."""

    def __init__(self, problems: Sequence[Problem], origin: Origin | None = None) -> None:
        self.problems = tuple(problems)
        self.origin = origin
        super().__init__("\n".join(_line(problem, origin) for problem in problems))


def _line(problem: Problem, origin: Origin | None) -> str:
    if origin is None:
        return str(problem)
    return f"{origin.file}:{origin.line_of(problem.path) + problem.line_offset}: {problem}"
