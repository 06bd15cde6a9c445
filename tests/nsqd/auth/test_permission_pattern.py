from __future__ import annotations

import pytest

from emberq.nsqd.auth.permission import Pattern, PermissionPatternError


@pytest.mark.parametrize(
    ("expression", "text"),
    [("est", "test"), (".*", ""), ("", "anything"), ("^a$", "a"), (r"\Aa\z", "a"), ("(?i)A", "a"), (r"\pL", "é")],
)
def test_an_expression_is_found_anywhere(expression: str, text: str) -> None:
    assert Pattern(expression).found_in(text)


@pytest.mark.parametrize(("expression", "text"), [("c1", ""), ("^est", "test"), ("a.b", "ab"), ("A", "a")])
def test_an_expression_is_not_found_where_it_does_not_match(expression: str, text: str) -> None:
    assert not Pattern(expression).found_in(text)


@pytest.mark.parametrize("expression", ["(", "*", "a{2,1}", "(?=look)", r"(a)\1", "a{2000}", "[z-a]"])
def test_what_re2_does_not_know_is_refused_quietly(expression: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PermissionPatternError):
        Pattern(expression)
    assert capfd.readouterr() == ("", "")


def test_an_expression_that_other_engines_choke_on_costs_nothing() -> None:
    assert not Pattern("^(a+)+$").found_in("a" * 64 + "b")
