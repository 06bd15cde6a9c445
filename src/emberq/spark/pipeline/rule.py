"""Quality rules: conditions in SQL that the rows of a source or a view are expected to meet, and what if they do not.

    [source.clicks.expect]
    has_user = "user IS NOT NULL"                            # counted
    known_page = { sql = "page LIKE '/%'", action = "drop" } # counted, and left out
    sane = { sql = "n BETWEEN 0 AND 1000", action = "fail" } # ends the query before anything of the batch is committed

A condition that is null is not met. A row of a source that is dropped is a bad record, with the rule as its reason
(`body_format.held_to`); of a view it is only counted.

A query counts the rows that fail each rule while it runs. The counts are observed under the name of the source, or of
the view behind `OBSERVED_VIEW`; `progress` tells them as `clicks.has_user`. Beside each count are samples: of the rows
of a batch that fail, the first and the last in the order of their text, as much of them as `MAX_SHOWN_CHARS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from emberq.spark.pipeline.model import Expectation, RuleAction

OBSERVED_VIEW = "emberq view "
"""The prefix of what a query observes of a view. No source can have it."""
RULE_COUNT = "rule "
"""The prefix of the count of a rule among what is observed."""
SAMPLES = "samples"
"""What samples are observed as: of bad records; and of a rule, with a blank and its name behind it."""
FAILED = "_emberq_failed"
"""The column of the names of the rules that a row does not meet."""

MAX_SHOWN_CHARS = 300
"""How much of a row the error of a rule shows, or a sample."""


def failed_rules(rules: Mapping[str, Expectation]) -> Column:
    """The names of the rules that a row does not meet."""
    failed = [
        F.when(F.coalesce(F.expr(rule.sql), F.lit(False)), F.lit(None)).otherwise(F.lit(name))
        for name, rule in rules.items()
    ]
    return F.filter(F.array(*failed), lambda name: name.isNotNull())


def first_failed(rules: Mapping[str, Expectation], action: RuleAction) -> Column:
    """The first rule with that action that a row does not meet, and its condition; null if it meets them all."""
    told = [
        F.when(F.array_contains(FAILED, name), F.lit(f"{name}: {rule.sql}"))
        for name, rule in rules.items()
        if rule.action is action
    ]
    return F.coalesce(*told) if told else F.lit(None).cast("string")


def rule_counts(rules: Mapping[str, Expectation]) -> Sequence[Column]:
    """What a query counts: the rows that fail each rule."""
    return [F.count_if(F.array_contains(FAILED, name)).alias(f"{RULE_COUNT}{name}") for name in rules]


def rule_samples(rules: Mapping[str, Expectation], shown: Column) -> Sequence[Column]:
    """Samples of the rows that fail each rule. `shown` tells of a row."""
    return [samples(F.array_contains(FAILED, name), shown, f"{SAMPLES} {name}") for name in rules]


def samples(condition: Column, shown: Column, name: str) -> Column:
    """Up to two of the rows that meet a condition."""
    found = F.when(condition, shown)
    return F.array(F.min(found), F.max(found)).alias(name)


def held_rows(rows: DataFrame, rules: Mapping[str, Expectation], *, view: str, has_samples: bool = True) -> DataFrame:
    """The rows of a view, without those that a rule drops. One that must not be raises an error."""
    shown = F.substring(F.to_json(F.struct(*[F.col(f"`{name}`") for name in rows.columns])), 1, MAX_SHOWN_CHARS)
    observed = [*rule_counts(rules), *(rule_samples(rules, shown) if has_samples else ())]
    judged = rows.withColumn(FAILED, failed_rules(rules)).observe(f"{OBSERVED_VIEW}{view}", *observed)
    kept = judged.where(first_failed(rules, RuleAction.DROP).isNull())
    return kept.where(or_raised(rules, F.concat(F.lit(f"view {view}: the row "), shown))).drop(FAILED)


def or_raised(rules: Mapping[str, Expectation], what: Column) -> Column:
    """True, or an error if a row fails a rule that ends the query. `what` tells of the row."""
    failed = first_failed(rules, RuleAction.FAIL)
    raised = F.raise_error(F.concat(what, F.lit(" does not meet "), failed)).cast("boolean")
    return F.when(failed.isNull(), F.lit(True)).otherwise(raised)
