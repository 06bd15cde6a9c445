"""A pipeline written as TOML, and the lines on which its keys stand.

    name = "clickstream"
    checkpoint = "data/checkpoint"
    nsqd = ["127.0.0.1:4151"]                     # or lookupd = [...]

    [source.clicks]
    topic = "clicks"
    schema = "page STRING NOT NULL, at TIMESTAMP NOT NULL"
    watermark = { column = "at", delay = "1 minute" }
    bad_records = { topic = "clicks.bad" }

    [view.per_minute]
    sql = "SELECT window(at, '1 minute').start AS minute, page, count(*) AS clicks FROM clicks GROUP BY 1, 2"

    [sink.counts]
    from = "per_minute"
    topic = "clicks.per-minute"

The keys are the fields of the classes in `model`, which describe them; only `Sink.view` is written `from`. An unknown
key is refused with the nearest that exists. Paths are relative to the folder of the file.

**Lines.** tomllib does not tell on which line a key stands (`key_lines`). A document is a row of statements, `[a.b]` or
`key = value`, where a value may take several lines. A statement that has begun and is not complete does not parse, so
tomllib itself says where each one ends. This works for every TOML that tomllib reads, and needs to know only that
comments begin with # and tables with [. Keys within `{ ... }` have the line of the key before it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from emberq.base.flag import nearest
from emberq.base.text import quoted
from emberq.spark.pipeline.check import problems_of
from emberq.spark.pipeline.model import (
    BadRecords,
    Expectation,
    KeyPath,
    Pipeline,
    PipelineError,
    Problem,
    ProblemOrigin,
    Sink,
    Source,
    Table,
    View,
    Watermark,
)

# Lines.


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and key of a valid document, counted from 1."""
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, statement in _statements(text):
        document = tomllib.loads(statement)
        path = _only_path(document, is_table=statement.lstrip().startswith("["))
        if statement.lstrip().startswith("["):
            table = path
            found.setdefault(table, number)
        else:
            for length in range(1, len(path) + 1):
                found.setdefault(table + path[:length], number)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement, with the line on which it begins."""
    pending, begun_at = "", 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not pending:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begun_at = number
        pending += line
        if _is_whole(pending):
            yield begun_at, pending
            pending = ""


def _is_whole(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _only_path(document: dict[str, Any], *, is_table: bool) -> KeyPath:
    """The keys that lead to what one statement defines: a and b for `a.b = 1`.

    `a = {b = 1}` looks the same once it is parsed, so its b gets the same line, which is right for it too.
    """
    path: KeyPath = ()
    value: Any = document
    while isinstance(value, dict) and value:
        key = next(iter(value))
        path += (key,)
        value = value[key]
        if isinstance(value, list) and is_table:
            value = value[0]
    return path


# Values.

_T = TypeVar("_T")

_KINDS: dict[str, tuple[str, type[Any]]] = {
    "source": ("sources", Source),
    "table": ("tables", Table),
    "view": ("views", View),
    "sink": ("sinks", Sink),
}
_SPELLED = {"view": "from"}
"""Fields of Sink that have another name in TOML."""
_PATHS = ("path", "checkpoint", "password_file", "jar")


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline, and the file it was read from."""

    pipeline: Pipeline
    origin: ProblemOrigin


def load_pipeline(file: str | Path) -> PipelineFile:
    """The pipeline in a file. PipelineError with all that is wrong with it; OSError if the file cannot be read."""
    path = Path(file)
    return read_pipeline(path.read_text(encoding="utf-8"), file=str(file), folder=path.parent)


def read_pipeline(text: str, *, file: str, folder: Path) -> PipelineFile:
    """The pipeline in `text`. Problems name `file`; paths are relative to `folder`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), file) from error
    reader = _Reader(folder)
    pipeline = reader.pipeline(document)
    origin = ProblemOrigin(file, key_lines(text))
    problems = reader.problems + problems_of(pipeline)
    if problems:
        raise PipelineError(problems, origin)
    return PipelineFile(pipeline, origin)


def _syntax_error(text: str, file: str) -> PipelineError:
    found = re.search(r"^(.*) \(at line (\d+), column \d+\)", text)
    if found is None:
        return PipelineError([Problem((), f"this is not TOML: {text}")], ProblemOrigin(file, {}))
    return PipelineError([Problem((), f"this is not TOML: {found[1]}")], ProblemOrigin(file, {(): int(found[2])}))


class _Reader:
    """Turns a document into values. What does not fit becomes a problem and is left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problems: list[Problem] = []

    def pipeline(self, document: Mapping[str, Any]) -> Pipeline:
        fields: dict[str, Any] = {
            field: self._tables(key, document.get(key, {}), made_of) for key, (field, made_of) in _KINDS.items()
        }
        plain = {key: value for key, value in document.items() if key not in _KINDS}
        hidden = {*(field for field, _ in _KINDS.values()), "secrets"}  # those stand in no file
        fields |= self._fields(Pipeline, plain, (), hidden=hidden)
        return Pipeline(**({"name": "", "checkpoint": ""} | fields))

    def _tables(self, key: str, tables: Any, made_of: type[_T]) -> dict[str, _T]:
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            self.problems.append(Problem((key,), "it must be a table of its own", f"write [{key}.NAME]"))
            return {}
        return {name: self._value_of(made_of, table, (key, name)) for name, table in tables.items()}

    def _value_of(self, made_of: type[_T], table: Mapping[str, Any], path: KeyPath) -> _T:
        fields = self._fields(made_of, table, path, hidden=set())
        spelled = _SPELLED if made_of is Sink else {}
        for name in _required(made_of) - {*fields}:
            key = spelled.get(name, name)
            if key not in table:
                self.problems.append(Problem(path, f"{key} is missing", f'add {key} = "..."'))
            fields[name] = ""
        return made_of(**fields)

    def _fields(
        self, made_of: type[Any], table: Mapping[str, Any], path: KeyPath, *, hidden: set[str]
    ) -> dict[str, Any]:
        spelled = _SPELLED if made_of is Sink else {}
        kinds = typing.get_type_hints(made_of)
        known = {spelled.get(name, name): name for name in kinds if name not in hidden}
        fields: dict[str, Any] = {}
        for key, value in table.items():
            if key not in known:
                self.problems.append(Problem((*path, key), "there is no such key", _nearest(key, known, hidden)))
                continue
            try:
                fields[known[key]] = self._converted(value, kinds[known[key]], (*path, key))
            except ValueError as wrong:
                self.problems.append(Problem((*path, key), str(wrong)))
        return fields

    def _converted(self, value: Any, kind: Any, path: KeyPath) -> Any:
        if kind is str:
            text = _text(value)
            return str(self._folder / text) if path[-1] in _PATHS and text and "://" not in text else text
        if kind is bool:
            if not isinstance(value, bool):
                raise ValueError("it must be true or false")
            return value
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            try:
                return kind(value)
            except ValueError:
                choices = ", ".join(str(member.value) for member in kind)
                raise ValueError(f"{quoted(str(value))} is not one of {choices}") from None
        if kind == tuple[str, ...]:
            return tuple(_text(item) for item in (value if isinstance(value, list) else [value]))
        if kind == Mapping[str, str]:
            if not isinstance(value, dict):
                raise ValueError('it must be a table, as { maxRowsPerTrigger = 1000 } or { "spark.x.y" = "z" }')
            return {key: _text(item) for key, item in _flat(value)}
        if kind == Mapping[str, Expectation]:
            return self._rules(value, path)
        made_of = BadRecords if kind == BadRecords | None else Watermark
        if isinstance(value, dict):
            return self._value_of(made_of, value, path)
        names = ", ".join(f'{field.name} = "..."' for field in dataclasses.fields(made_of))
        raise ValueError(f"it must be a table: {{ {names} }}")

    def _rules(self, value: Any, path: KeyPath) -> dict[str, Expectation]:
        """A rule that is only a text is its condition."""
        if not isinstance(value, dict):
            raise ValueError('it must be a table of rules, as { has_user = "user IS NOT NULL" }')  # noqa: TRY004
        rules = {}
        for name, rule in value.items():
            table = rule if isinstance(rule, dict) else {"sql": rule}
            rules[name] = self._value_of(Expectation, table, (*path, name))
        return rules


def _required(made_of: Any) -> set[str]:
    """The fields without a default."""
    return {
        field.name
        for field in dataclasses.fields(made_of)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


def _text(value: Any) -> str:
    """A plain value, written as Spark takes it in an option."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("it must be text, a number, true or false")


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """`spark.sql.x = 1` without quotes is a table in a table in TOML; here it is one key with dots."""
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return pairs


def _nearest(key: str, known: Mapping[str, str], hidden: set[str]) -> str:
    candidates = [*known, *(_KINDS if hidden else ())]
    found = nearest(key, candidates)
    return f"did you mean {found}?" if found else f"there are: {', '.join(sorted(candidates))}"
