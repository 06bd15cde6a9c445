"""Rules: what a file may say, what is kept of it, and what Prometheus is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from emberq.admin.rule import BUILT_IN, Condition, Rule, RuleError, RuleFile, RuleSet, prometheus_rules
from emberq.nsqd.metrics import FAMILIES

FILE = """
# who is woken
webhook = "https://hooks.example.com/secret"

[[rule]]
name = "Orders wait"
when = "depth"
above = 10000
for = "5m"
severity = "critical"
topic = "orders*"

[[rule]]
name = "Old"
when = "age"
above = "30m"
channel = "bill?ng"

[[rule]]
name = "Gone"
when = "node_gone"
node = "10.0.*"
"""


def test_what_a_file_says_is_read_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(FILE)
    file = RuleFile(str(path))
    orders, old, gone = file.current.rules
    assert (orders.above, orders.for_ns, orders.severity) == (10_000, 300 * 10**9, "critical")
    assert (orders.concerns("orders.eu", "x"), orders.concerns("old_orders", "x")) == (True, False)
    assert (old.above, old.concerns("t", "billing"), old.concerns("t", "biling")) == (1800, True, False)
    assert (gone.concerns_node("10.0.3.4:4151"), gone.concerns_node("100.0:4151")) == (True, False)
    assert file.is_writable
    assert file.save([old, gone], file.current.version)
    again = RuleFile(str(path)).current
    assert (again.rules, again.webhook) == ((old, gone), "https://hooks.example.com/secret")
    assert not file.save([orders], "another version")
    assert RuleFile(str(path)).current == again


def test_without_a_file_built_in_rules_hold_and_one_is_made_when_they_are_changed(tmp_path: Path) -> None:
    assert RuleFile("").current.rules == BUILT_IN
    assert not RuleFile("").is_writable
    with pytest.raises(OSError, match="alert-rules-file"):
        RuleFile("").save([], "")
    file = RuleFile(str(tmp_path / "rules.toml"))
    assert (file.current.rules, file.current.version, file.is_writable) == (BUILT_IN, "", True)
    assert file.save(BUILT_IN[:2], "")
    assert RuleFile(str(tmp_path / "rules.toml")).current.rules == BUILT_IN[:2]


def test_a_file_that_became_unusable_leaves_the_rules_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(FILE)
    file = RuleFile(str(path))
    before = file.current
    path.write_text("[[rule]]\nname = 5\n")
    file.reload()
    assert file.current == before
    with pytest.raises(RuleError, match=r"failed to read --alert-rules-file .* - name must be a string"):
        RuleFile(str(path))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"name": ""}, "a rule needs a name"),
        ({"name": "r"}, "when must be one of depth, age"),
        ({"name": "r", "when": "depth", "above": "many"}, "above must be a number"),
        ({"name": "r", "when": "depth", "above": True}, "above must be a number"),
        ({"name": "r", "when": "age", "above": 30}, "above must be a duration"),
        ({"name": "r", "when": "depth", "for": "often"}, "for must be a duration"),
        ({"name": "r", "when": "depth", "for": "1000h"}, "for must be at most"),
        ({"name": "r", "when": "depth", "severity": "mild"}, "severity must be one of critical, warning"),
        ({"name": "r", "when": "depth", "topic": ""}, "topic must be a pattern"),
        ({"name": "r", "when": "depth", "node": "a*"}, "depth has no node"),
        ({"name": "r", "when": "node_gone", "topic": "a*"}, "node_gone has no topic"),
        ({"name": "r", "when": "depth", "over": 5}, 'it has no "over"'),
    ],
)
def test_what_cannot_be_a_rule_is_refused_with_the_reason(said: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=why):
        Rule.parse(said)


def test_a_file_with_what_it_cannot_have_is_refused() -> None:
    for content, why in (
        (b"webhook = 'ftp://x'", "webhook must be a URL"),
        (b"webhook = 'http://[x'", "webhook must be a URL"),
        (b"rules = 1", 'it has no "rules"'),
        (b"[[rule", "it is not TOML"),
        (b"[rule]\nname = 'x'", "rules must be a list"),
        (b"[[rule]]\nname='a'\nwhen='depth'\n" * 2, "two of this name"),
    ):
        with pytest.raises(RuleError, match=why):
            RuleSet.parse(content)


def test_prometheus_is_told_the_same_of_metrics_that_there_are() -> None:
    rules = [Rule.parse({"name": f"is {when}", "when": when, "for": "90s"}) for when in Condition]
    rules.append(Rule.parse({"name": "x", "when": "depth", "above": 5, "topic": "a.b*", "channel": 'c?"'}))
    (group,) = yaml.safe_load(prometheus_rules(rules))["groups"]
    told = {each["alert"]: each for each in group["rules"]}
    assert list(told) == [rule.name for rule in rules]
    assert told["is depth"]["for"] == "90s"
    assert told["is depth"]["labels"] == {"severity": "warning"}
    assert told["x"]["expr"] == (
        r'sum by (topic, channel) (nsqd_channel_depth{topic=~"a\\.b.*",channel=~"c.\\\""}) > 5'
    )
    exported = {family.name for family in FAMILIES}
    for each in group["rules"]:
        named = {word for word in _words(each["expr"]) if word.startswith("nsqd_")}
        assert named
        assert each["expr"].count("(") == each["expr"].count(")")
        assert named <= exported
    assert yaml.safe_load(prometheus_rules([])) == {"groups": []}


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() or char == "_" else " " for char in text).split()
