"""Which topics a pattern finds, with google-re2 and without it."""

from __future__ import annotations

import pytest

from emberq.tools.nsq_to_file import options
from emberq.tools.nsq_to_file.options import TopicPattern, TopicPatternError


@pytest.fixture(params=["re2", "re"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "re":
        monkeypatch.setattr(options, "re2", None)
    return name


@pytest.mark.parametrize(
    ("pattern", "topic", "is_found"),
    [
        ("", "orders", True),
        ("der", "orders", True),
        ("^der", "orders", False),
        (r"\.log$", "web.log", True),
        (r"\.log$", "web_log", False),
        (r"^(web|app)\.\w+$", "app.errors", True),
        (r"^(?i:WEB)", "web.errors", True),
        (r"^\d{4}#ephemeral$", "2024#ephemeral", True),
    ],
)
@pytest.mark.usefixtures("library")
def test_a_pattern_is_found_anywhere_in_a_topic(pattern: str, topic: str, *, is_found: bool) -> None:
    assert TopicPattern(pattern).is_found_in(topic) is is_found


@pytest.mark.parametrize("pattern", ["((", "[", "*", "a{2,1}"])
@pytest.mark.usefixtures("library")
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(TopicPatternError):
        TopicPattern(pattern)


def test_only_re2_refuses_to_look_ahead(library: str) -> None:
    if library == "re2":
        with pytest.raises(TopicPatternError):
            TopicPattern("web(?=log)")
    else:
        assert TopicPattern("web(?=log)").is_found_in("weblog")
