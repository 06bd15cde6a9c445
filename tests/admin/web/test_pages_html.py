"""HTML that is escaped unless it was made here."""

from __future__ import annotations

import pytest

from emberq.admin.web.pages import Markup, document, element

HOSTILE = "\"><script>alert('x')</script>&amp;"


def test_text_is_escaped() -> None:
    assert element("p", None, HOSTILE) == (
        "<p>&quot;&gt;&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;amp;</p>"
    )


def test_values_of_attributes_are_escaped() -> None:
    assert element("p", {"title": HOSTILE}) == (
        '<p title="&quot;&gt;&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;amp;"></p>'
    )


def test_elements_within_an_element_stand_as_they_are() -> None:
    assert element("ul", None, [element("li", None, "a"), element("li", None, "<b>")]) == (
        "<ul><li>a</li><li>&lt;b&gt;</li></ul>"
    )


def test_attributes_that_are_none_or_false_are_left_out_and_true_ones_have_no_value() -> None:
    assert element("p", {"a": None, "b": False, "hidden": True, "c": ""}) == '<p hidden c=""></p>'


def test_children_that_are_none_are_left_out() -> None:
    assert element("p", None, None, "a", None) == "<p>a</p>"


def test_elements_without_an_end_have_none_and_no_children() -> None:
    assert element("meta", {"charset": "utf-8"}) == '<meta charset="utf-8">'
    with pytest.raises(ValueError, match="cannot have children"):
        element("meta", None, "a")


def test_a_document_is_utf8_even_where_a_name_is_half_a_surrogate_pair() -> None:
    assert document(Markup("<p>ö\ud800</p>")) == "<!doctype html>\n<p>ö?</p>\n".encode()
