"""Go's flag grammar, which NSQ's users and scripts rely on, and the kinds of values a flag can have.

    -flag  --flag  -flag=value  --flag value

One dash or two make no difference. A flag that stands alone (a boolean) takes a value only after `=`. Any other takes
the rest of its word after `=`, or else the next word, also if that looks like a flag. Flags end at the first word that
is none, or after `--`. The caller gets all values of a flag in order, and decides whether the last one wins or they add
up. The first mistake ends the reading.

A kind of value says how it is read from a flag and from TOML, and how it is shown. In a config file a quoted value is
read by the same rules as the flag's text, so `msg_timeout = "60s"` and `--msg-timeout=60s` cannot differ. `from_text`
raises ValueError with the words that follow `invalid value "…" for flag -x: `; `from_toml` raises ValueError too, and
there the text is made from `noun`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from emberq.base.log import LogFormat, LogLevel
from emberq.base.text import MAX_NS, format_duration, one_line, parse_duration, quoted


class FlagError(Exception):
    """A mistake on the command line: it is printed, and the exit status is 2. `nearest` is the flag that was meant."""

    def __init__(self, text: str, *, nearest: str = "") -> None:
        super().__init__(text)
        self.nearest = nearest


class HelpRequested(Exception):
    """`-h` or `--help`: the usage is printed on standard output, and the exit status is 0."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line taken apart."""

    flags: tuple[tuple[str, Any], ...]
    """Name and value of every flag, in the order given."""
    rest: tuple[str, ...]
    """The words after the flags."""


def parse_flags(argv: Sequence[str], kinds: Mapping[str, ValueKind[Any]]) -> CommandLine:
    """Take apart `argv`, the words after the program's name, by the flags in `kinds`."""
    flags: list[tuple[str, Any]] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if not word.startswith("-") or word == "-":
            break
        position += 1
        if word == "--":
            break
        name, equals, text = _split(word)
        kind = _find(name, kinds)
        if not equals and kind.stands_alone:
            text = "true"
        elif not equals:
            if position == len(argv):
                raise FlagError(f"flag needs an argument: -{name}")
            text = argv[position]
            position += 1
        flags.append((name, _value(kind, name, text)))
    return CommandLine(tuple(flags), tuple(argv[position:]))


def _split(word: str) -> tuple[str, str, str]:
    """`--name=text` without its dashes: name, `=` if there is one, text."""
    name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
    if not name or name.startswith("-"):
        raise FlagError(f"bad flag syntax: {one_line(word)}")
    return name, equals, text


def _find(name: str, kinds: Mapping[str, ValueKind[Any]]) -> ValueKind[Any]:
    if name in kinds:
        return kinds[name]
    if name in ("h", "help"):
        raise HelpRequested
    raise FlagError(f"flag provided but not defined: -{one_line(name)}", nearest=nearest(name, kinds))


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that a mistyped one most likely stands for; empty if none comes near."""
    from difflib import get_close_matches  # only mistakes need it

    return next(iter(get_close_matches(word, list(known), n=1)), "")


def _value(kind: ValueKind[Any], name: str, text: str) -> Any:
    try:
        return kind.from_text(text)
    except ValueError as error:
        shown = quoted(kind.without_secret(text))
        what = f"boolean value {shown} for" if kind.stands_alone else f"value {shown} for flag"
        raise FlagError(f"invalid {what} -{name}: {error}") from error


# Kinds of values.

T = TypeVar("T")

PARSE_ERROR = "parse error"
OUT_OF_RANGE = "value out of range"
INT64_MAX = (1 << 63) - 1


class SettingError(Exception):
    """A setting that cannot be used: one line for the user, exit status 1, no usage text."""


class ValueKind(ABC, Generic[T]):
    """How a value is read from a flag and from TOML, and shown. It knows nothing of any particular setting."""

    placeholder: str
    """What stands for the value in help: `--msg-timeout <duration>`."""
    noun: str
    """Completes "msg_timeout must be …"."""
    stands_alone = False
    """Whether `--flag` without a value means true (then the value can only follow after `=`)."""
    repeatable = False
    """Whether giving the flag again adds to the value, which then is a tuple, instead of replacing it."""
    unit = ""
    """Unit of the value in the program; the attribute's name ends in it."""

    @abstractmethod
    def from_text(self, text: str) -> T:
        """The value of a flag's text."""

    def without_secret(self, text: str) -> str:
        """A flag's text as an error may quote it: errors end up in logs."""
        return text

    def from_toml(self, value: object) -> T:
        """The value of a TOML key."""
        if isinstance(value, str):
            return self.from_text(value)
        return self.from_native(value)

    def from_native(self, value: object) -> T:
        """The value of a TOML key that is not a string."""
        raise ValueError(f"{value!r} is not {self.noun}")

    def to_text(self, value: T) -> str:
        """The value as a user would write it."""
        return str(value)


class Text(ValueKind[str]):
    """Any string."""

    noun = "a string"

    def __init__(self, placeholder: str = "string") -> None:
        self.placeholder = placeholder

    def from_text(self, text: str) -> str:
        return text

    def to_text(self, value: str) -> str:
        return value if value == value.strip() else quoted(value)  # a space at the end would not be seen


class Boolean(ValueKind[bool]):
    """True or false. A number in TOML is refused: NSQ reads 0 as true, so a number is a mistake."""

    placeholder = "bool"
    noun = "true or false"
    stands_alone = True
    words: Mapping[str, bool] = {
        **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
        **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
    }

    def from_text(self, text: str) -> bool:
        if text not in self.words:
            raise ValueError(PARSE_ERROR)
        return self.words[text]

    def from_native(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        return super().from_native(value)

    def to_text(self, value: bool) -> str:
        return "true" if value else "false"


class Integer(ValueKind[int]):
    """A whole number of 64 bits: decimal, or with 0x, 0o, 0b; digits may be grouped by `_`."""

    placeholder = "int"
    noun = "an integer"
    _shape = re.compile(r"[+-]?[0-9][0-9A-Za-z_]*")  # int() alone would take spaces and other scripts' digits

    def from_text(self, text: str) -> int:
        if not self._shape.fullmatch(text):
            raise ValueError(PARSE_ERROR)
        try:
            value = int(text, 0)
        except ValueError as error:
            raise ValueError(PARSE_ERROR) from error
        return self._within_range(value)

    def from_native(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return self._within_range(value)
        return super().from_native(value)

    def _within_range(self, value: int) -> int:
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise ValueError(OUT_OF_RANGE)
        return value


class Duration(ValueKind[int]):
    """A span of time, nanoseconds in the program; a bare TOML integer is milliseconds."""

    placeholder = "duration"
    noun = 'a duration ("1m30s") or a number of milliseconds'
    unit = "ns"

    def from_text(self, text: str) -> int:
        try:
            return parse_duration(text)
        except ValueError as error:
            raise ValueError(PARSE_ERROR) from error

    def from_native(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            value_ns = value * 1_000_000
            if abs(value_ns) <= MAX_NS:
                return value_ns
        return super().from_native(value)

    def to_text(self, value: int) -> str:
        return format_duration(value)


class Float(ValueKind[float]):
    """A decimal number such as `--sample=0.25`, perhaps with an exponent; neither infinite nor "not a number"."""

    placeholder = "float"
    noun = "a number"
    _shape = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # float() alone would take much more

    def from_text(self, text: str) -> float:
        if not self._shape.fullmatch(text):
            raise ValueError(PARSE_ERROR)
        value = float(text)
        if math.isinf(value):
            raise ValueError(OUT_OF_RANGE)
        return value

    def to_text(self, value: float) -> str:
        return f"{value:g}"


class Strings(ValueKind[tuple[str, ...]]):
    """A list of strings: the flag again and again, or in TOML an array or one string with commas."""

    noun = "an array of strings or a string with commas"
    repeatable = True

    def __init__(self, placeholder: str = "string") -> None:
        self.placeholder = placeholder

    def from_text(self, text: str) -> tuple[str, ...]:
        return (text,)

    def from_toml(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return tuple(value)
        return super().from_native(value)

    def to_text(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


class Floats(ValueKind[tuple[float, ...]]):
    """A list of numbers: the flag again and again or with commas; in TOML an array or a string with commas."""

    placeholder = "float"
    noun = "an array of numbers or a string with commas"
    repeatable = True

    def from_text(self, text: str) -> tuple[float, ...]:
        return tuple(self._parse(part.strip()) for part in text.split(","))

    def _parse(self, text: str) -> float:
        try:
            return float(text)
        except ValueError as error:  # NSQ ends here with status 1 and no usage, unlike any other bad flag
            raise SettingError(f"Could not parse: {text}") from error

    def from_native(self, value: object) -> tuple[float, ...]:
        if isinstance(value, list) and all(type(part) in (int, float) for part in value):
            return tuple(float(part) for part in value)
        return super().from_native(value)

    def to_text(self, value: tuple[float, ...]) -> str:
        return ",".join(f"{part:g}" for part in value)


class Words(ValueKind[T]):
    """One of a few words, in any case, each standing for a value of the program.

    `aliases` are accepted and never shown. `refusal` is the text for any other word, with `{}` for it in quotes.
    With `stands_alone` the words must include `true`, and TOML may use real booleans.
    """

    def __init__(
        self,
        placeholder: str,
        words: Mapping[str, T],
        *,
        aliases: Mapping[str, T] | None = None,
        refusal: str = "",
        stands_alone: bool = False,
    ) -> None:
        self.placeholder = placeholder
        self.stands_alone = stands_alone
        self.noun = "one of " + ", ".join(words)
        self._words = dict(words)
        self._accepted = {**words, **(aliases or {})}
        self._refusal = refusal or f"must be {self.noun}"

    def from_text(self, text: str) -> T:
        word = text.lower()
        if word not in self._accepted:
            raise ValueError(self._refusal.replace("{}", quoted(text)))
        return self._accepted[word]

    def from_native(self, value: object) -> T:
        if self.stands_alone and isinstance(value, bool):
            return self.from_text("true" if value else "false")
        return super().from_native(value)

    def to_text(self, value: T) -> str:
        return next(word for word, meant in self._words.items() if meant == value)


BOOLEAN = Boolean()
INTEGER = Integer()
DURATION = Duration()
FLOAT = Float()
FLOATS = Floats()
LOG_LEVEL = Words("level", {level.word: level for level in LogLevel})
LOG_FORMAT = Words("format", {log_format.value: log_format for log_format in LogFormat})
