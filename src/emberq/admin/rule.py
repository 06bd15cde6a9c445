"""Rules that say when something is wrong: their file, and the same rules for Prometheus.

    webhook = "https://hooks.example.com/nsq"      where alerts are told; the flag --alert-webhook-url goes before it

    [[rule]]
    name = "Orders wait"                           as alerts are called; each name once
    when = "depth"                                 one of the conditions below
    above = 10000                                  the value must be above this; of an age it is a duration, "30m"
    for = "5m"                                     and stay there for so long, before there is an alert
    severity = "critical"                          or "warning", which it is unless it is said
    topic = "orders*"                              which topics, channels and nodes: `*` stands for any characters,
    channel = "*"                                  `?` for one

    when             value
    depth            messages that wait in a channel
    age              how long ago the oldest of them was published (see `attention`)
    no_consumers     messages that wait in a channel without consumers
    stuck            messages that wait although consumers are there, and none is finished
    growing          messages per second by which a backlog grows
    dead_letters     messages per second that are given up
    requeued         deliveries per second that fail
    paused           messages that wait in a channel that is paused, or whose topic is
    node_silent      a node is listed and does not answer; these three have no `above`
    node_gone        a node is not listed any more, and was not drained
    node_unhealthy   a node says that it is not well: its disk is nearly full, or a write failed

Without a file (--alert-rules-file), or before there is one, `BUILT_IN` holds. A file is read again on SIGHUP. When a
page changes the rules it is written anew, and comments in it are lost.

**For Prometheus** a rule becomes an expression over what nsqds export. It says the same of the same cluster, from
Prometheus' own samples: rates are those of the last minute, a node is what Prometheus calls an instance. It is silent
when it is still a target and cannot be scraped, and gone, for an hour, when it is no target any more.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from emberq.base.clock import NS_PER_SECOND
from emberq.base.file import replace_file
from emberq.base.text import format_duration, glob_expression, parse_duration, quoted

MAX_RULES = 100
"""Each is compared with every channel at every look."""
MAX_NAME_LENGTH = 64
MAX_PATTERN_LENGTH = 200
"""Names of topics and channels have up to 74 characters, those of nodes more."""
MAX_FILE_BYTES = 256 * 1024
"""As many rules as there may be, each as long as can be."""
MAX_FOR_NS = 7 * 24 * 3600 * NS_PER_SECOND
"""What is tolerated for longer is no alert."""

ANY = "*"
WordT = TypeVar("WordT", bound=enum.StrEnum)

_log = logging.getLogger(__name__)


class Condition(enum.StrEnum):
    """What a rule looks at."""

    DEPTH = "depth"
    AGE = "age"
    NO_CONSUMERS = "no_consumers"
    STUCK = "stuck"
    GROWING = "growing"
    DEAD_LETTERS = "dead_letters"
    REQUEUED = "requeued"
    PAUSED = "paused"
    NODE_SILENT = "node_silent"
    NODE_GONE = "node_gone"
    NODE_UNHEALTHY = "node_unhealthy"

    @property
    def is_of_nodes(self) -> bool:
        """Whether it is about nodes, not channels."""
        return self in _OF_NODES


_OF_NODES = frozenset({Condition.NODE_SILENT, Condition.NODE_GONE, Condition.NODE_UNHEALTHY})


class AlertSeverity(enum.StrEnum):
    """How urgent an alert is, the gravest first."""

    CRITICAL = "critical"
    WARNING = "warning"


class RuleError(ValueError):
    """A rule, a file of rules or a silence that cannot be used; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When something is wrong."""

    name: str
    when: Condition
    above: float = 0.0
    """Messages, messages per second, or for an age seconds."""
    for_ns: int = 0
    severity: AlertSeverity = AlertSeverity.WARNING
    topic: str = ANY
    channel: str = ANY
    node: str = ANY

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Rule:
        """A rule as a file or a page has it; RuleError."""
        name = text_in(said, "name", "")
        if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise RuleError(f"a rule needs a name of 1 to {MAX_NAME_LENGTH} characters")
        try:
            return cls._parse(name, said)
        except RuleError as wrong:
            raise RuleError(f"rule {quoted(name)}: {wrong}") from wrong

    @classmethod
    def _parse(cls, name: str, said: Mapping[str, Any]) -> Rule:
        when = _word(said, "when", Condition, None)
        unknown = sorted(set(said) - _KEYS)
        if unknown:
            raise RuleError(f"it has no {quoted(unknown[0])}; there are {', '.join(sorted(_KEYS))}")
        foreign = ("topic", "channel", "above") if when.is_of_nodes else ("node",)
        for key in foreign:
            if said.get(key) not in (None, ANY, 0):
                raise RuleError(f"{when} has no {key}")
        return cls(
            name=name,
            when=when,
            above=_above(when, said.get("above", 0)),
            for_ns=_for(said.get("for", "0s")),
            severity=_word(said, "severity", AlertSeverity, AlertSeverity.WARNING),
            **{key: _pattern(said, key) for key in ("topic", "channel", "node")},
        )

    def document(self) -> dict[str, Any]:
        """The rule as a file or a page has it: what is as usual is left out."""
        patterns = {key: value for key in ("topic", "channel", "node") if (value := getattr(self, key)) != ANY}
        return {
            "name": self.name,
            "when": self.when.value,
            **({} if self.when.is_of_nodes else {"above": self.shown_above}),
            "for": format_duration(self.for_ns),
            "severity": self.severity.value,
            **patterns,
        }

    @property
    def shown_above(self) -> str | int | float:
        """A duration for an age, else a number."""
        if self.when is Condition.AGE:
            return format_duration(round(self.above * NS_PER_SECOND))
        return int(self.above) if self.above.is_integer() else self.above

    def concerns(self, topic: str, channel: str) -> bool:
        """Whether it is about this channel."""
        of_topic, of_channel = self._patterns
        return (of_topic is None or of_topic.fullmatch(topic) is not None) and (
            of_channel is None or of_channel.fullmatch(channel) is not None
        )

    def concerns_node(self, node: str) -> bool:
        """Whether it is about this node."""
        return self.node == ANY or re.fullmatch(glob_expression(self.node), node) is not None

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        """Of topics and of channels; None where any will do."""
        chosen = (self.topic, self.channel)
        topic, channel = (None if each == ANY else re.compile(glob_expression(each)) for each in chosen)
        return topic, channel


_KEYS = frozenset({"name", "when", "above", "for", "severity", "topic", "channel", "node"})


def text_in(said: Mapping[str, Any], key: str, default: str) -> str:
    """A string that a file or a page gives; RuleError."""
    value = said.get(key, default)
    if not isinstance(value, str):
        raise RuleError(f"{key} must be a string")
    return value


def _word(said: Mapping[str, Any], key: str, words: type[WordT], default: WordT | None) -> WordT:
    value = said.get(key, default)
    if not isinstance(value, str) or value not in set(words):
        raise RuleError(f"{key} must be one of {', '.join(words)}")
    return words(value)


def _pattern(said: Mapping[str, Any], key: str) -> str:
    pattern = text_in(said, key, ANY)
    if not 0 < len(pattern) <= MAX_PATTERN_LENGTH or not pattern.isprintable() or not pattern.isascii():
        raise RuleError(f"{key} must be a pattern of 1 to {MAX_PATTERN_LENGTH} ASCII characters")
    return pattern


def _above(when: Condition, value: Any) -> float:
    if when is Condition.AGE:
        return duration_in("above", value) / NS_PER_SECOND
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise RuleError("above must be a number of at least 0")
    return float(value)


def _for(value: Any) -> int:
    for_ns = duration_in("for", value)
    if for_ns > MAX_FOR_NS:
        raise RuleError(f"for must be at most {format_duration(MAX_FOR_NS)}")
    return for_ns


def duration_in(key: str, value: Any) -> int:
    """A duration that a file or a page gives, in nanoseconds; RuleError."""
    try:
        duration_ns = parse_duration(value) if isinstance(value, str) else 0 if value == 0 else -1
    except ValueError:
        duration_ns = -1
    if duration_ns < 0:
        raise RuleError(f'{key} must be a duration, such as "90s" or "5m"')
    return duration_ns


_MINUTE_NS = 60 * NS_PER_SECOND
BUILT_IN = (
    Rule(name="Node gone", when=Condition.NODE_GONE, severity=AlertSeverity.CRITICAL),
    Rule(name="Node silent", when=Condition.NODE_SILENT, for_ns=_MINUTE_NS, severity=AlertSeverity.CRITICAL),
    Rule(name="Node not well", when=Condition.NODE_UNHEALTHY, for_ns=_MINUTE_NS, severity=AlertSeverity.CRITICAL),
    Rule(name="Nothing is finished", when=Condition.STUCK, for_ns=5 * _MINUTE_NS, severity=AlertSeverity.CRITICAL),
    Rule(name="Dead letters", when=Condition.DEAD_LETTERS, for_ns=_MINUTE_NS),
    Rule(name="No consumers", when=Condition.NO_CONSUMERS, for_ns=10 * _MINUTE_NS),
    Rule(name="Old messages", when=Condition.AGE, above=30 * 60.0, for_ns=_MINUTE_NS),
    Rule(name="Deep queue", when=Condition.DEPTH, above=100_000.0, for_ns=10 * _MINUTE_NS),
)
"""What holds unless an operator says otherwise: what hardly any cluster wants to have."""


# The file


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """What a file of rules says."""

    rules: tuple[Rule, ...] = BUILT_IN
    webhook: str = ""
    version: str = ""
    """Of the file's content; empty if there is none."""

    @classmethod
    def parse(cls, content: bytes) -> RuleSet:
        """RuleError for a file that cannot be used."""
        if len(content) > MAX_FILE_BYTES:
            raise RuleError(f"it is longer than {MAX_FILE_BYTES} bytes")
        try:
            said = tomllib.loads(content.decode("utf-8"))
        except ValueError as wrong:
            raise RuleError(f"it is not TOML: {wrong}") from wrong
        unknown = sorted(set(said) - {"webhook", "rule"})
        if unknown:
            raise RuleError(f"it has no {quoted(unknown[0])}; there are webhook and [[rule]]")
        webhook = text_in(said, "webhook", "")
        if webhook and not _is_web_address(webhook):
            raise RuleError("webhook must be a URL that begins with http:// or https://")
        return cls(rules=parse_rules(said.get("rule", [])), webhook=webhook, version=_version(content))

    def content(self) -> bytes:
        """The file that says so."""
        head = [f"webhook = {_written(self.webhook)}"] if self.webhook else []
        tables = [
            "\n".join(["[[rule]]", *(f"{key} = {_written(value)}" for key, value in rule.document().items())])
            for rule in self.rules
        ]
        return ("\n\n".join([*head, *tables]) + "\n").encode()


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def parse_rules(said: Any) -> tuple[Rule, ...]:
    """Rules as a file or a page lists them; RuleError."""
    if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
        raise RuleError("rules must be a list of tables")
    if len(said) > MAX_RULES:
        raise RuleError(f"there are more than {MAX_RULES} rules")
    rules = tuple(Rule.parse(each) for each in said)
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise RuleError(f"rule {quoted(name)}: there are two of this name")
    return rules


def _version(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _written(value: str | int | float) -> str:
    """As TOML has it; what JSON escapes in a string, TOML reads back."""
    return json.dumps(value, ensure_ascii=False)


class RuleFile:
    """The rules that hold, and where they are kept. Owned by the daemon."""

    def __init__(self, path: str) -> None:
        """`path` may be empty; then the rules are built in. RuleError if the file cannot be used."""
        self._path = Path(path) if path else None
        self.current = self._read()

    @property
    def is_given(self) -> bool:
        """Whether there is to be a file."""
        return self._path is not None

    @property
    def is_writable(self) -> bool:
        """Whether rules can be changed by `save`."""
        if self._path is None:
            return False
        is_free = not self._path.exists() or os.access(self._path, os.W_OK)
        return is_free and os.access(self._path.parent, os.W_OK)  # it is replaced as a whole

    def reload(self) -> None:
        """Read the file again; if it cannot be used, the rules stay as they are."""
        try:
            self.current = self._read()
        except RuleError as wrong:
            _log.error("%s; the rules stay as they are", wrong)

    def save(self, rules: Sequence[Rule], version: str) -> bool:
        """Write these rules, unless the file is not of that version any more: False then. OSError."""
        if self._path is None:
            raise PermissionError("there is no --alert-rules-file")
        on_disk = _version(self._path.read_bytes()) if self._path.exists() else ""
        if version != on_disk:
            return False
        content = RuleSet(rules=tuple(rules), webhook=self.current.webhook).content()
        replace_file(self._path, content)
        self.current = RuleSet.parse(content)
        return True

    def _read(self) -> RuleSet:
        if self._path is None:
            return RuleSet()
        try:
            return RuleSet.parse(self._path.read_bytes())
        except FileNotFoundError:
            _log.info("%s is not there yet: the built-in rules hold", self._path)
            return RuleSet()
        except OSError as failure:
            reason = failure.strerror
            raise RuleError(f"failed to read --alert-rules-file ({self._path}) - {reason}") from failure
        except RuleError as wrong:
            raise RuleError(f"failed to read --alert-rules-file ({self._path}) - {wrong}") from wrong


# For Prometheus

_WINDOW = "[1m]"


def prometheus_rules(rules: Iterable[Rule]) -> str:
    """A rules file for Prometheus that says the same. Its strings are written as in JSON, which YAML reads."""
    lines = ["groups:", "  - name: nsq", "    rules:"]
    for rule in rules:
        summary = (
            "{{ $labels.instance }}" if rule.when.is_of_nodes else "{{ $labels.topic }} / {{ $labels.channel }}"
        ) + f": {rule.name}"
        value = "{{ $value }} is above " + str(rule.shown_above)
        lines += [
            f"      - alert: {json.dumps(rule.name)}",
            f"        expr: {json.dumps(_promql(rule))}",
            f"        for: {max(math.ceil(rule.for_ns / NS_PER_SECOND), 0)}s",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(summary)}",
            *([] if rule.when.is_of_nodes else [f"          description: {json.dumps(value)}"]),
        ]
    return "\n".join(lines) + "\n" if len(lines) > len(("groups", "name", "rules")) else "groups: []\n"


def _promql(rule: Rule) -> str:
    """The expression of a rule."""
    if rule.when.is_of_nodes:
        chosen = _selector(instance=rule.node)
        if rule.when is Condition.NODE_UNHEALTHY:
            return f"nsqd_healthy{chosen} == 0"
        if rule.when is Condition.NODE_SILENT:
            return f"up{chosen} == 0 and on (instance) count_over_time(nsqd_info[1d])"
        return f"count by (instance) (count_over_time(nsqd_info{chosen}[1h])) unless on (instance) up"
    return _of_channels(rule.when, _selector(topic=rule.topic, channel=rule.channel), rule.above)


def _of_channels(when: Condition, chosen: str, above: float) -> str:
    def total(metric: str, function: str = "", window: str = _WINDOW) -> str:
        series = f"nsqd_channel_{metric}{chosen}"
        return f"sum by (topic, channel) ({f'{function}({series}{window})' if function else series})"

    depth, limit = total("depth"), f"{above:.15g}"
    paused = (
        f"max by (topic, channel) (nsqd_channel_paused{chosen}"
        f" + on (job, instance, topic) group_left () nsqd_topic_paused) > 0"
    )
    match when:
        case Condition.DEPTH:
            return f"{depth} > {limit}"
        case Condition.AGE:
            return f"max by (topic, channel) (nsqd_channel_oldest_message_age_seconds{chosen}) > {limit}"
        case Condition.NO_CONSUMERS:
            return f"{depth} > {limit} and {total('clients')} == 0"
        case Condition.STUCK:
            idle = f"{total('clients')} > 0 and {total('client_finished', 'delta')} <= 0"
            return f"({depth} > {limit} and {idle}) unless ({paused})"
        case Condition.GROWING:
            return f"{total('depth', 'deriv')} > {limit} unless ({paused})"
        case Condition.DEAD_LETTERS:
            return f"{total('dead_letters_total', 'rate')} > {limit}"
        case Condition.REQUEUED:
            return f"{total('requeued_total', 'rate')} + {total('timed_out_total', 'rate')} > {limit}"
        case _:
            return f"{depth} > {limit} and ({paused})"


def _selector(**patterns: str) -> str:
    """Labels that a series must have; `.*` would be the same as none."""
    chosen = [
        f"{label}=~{json.dumps(glob_expression(pattern))}" for label, pattern in patterns.items() if pattern != ANY
    ]
    return "{" + ",".join(chosen) + "}" if chosen else ""
