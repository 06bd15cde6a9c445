"""HTML that is escaped unless it was made here.

    element("a", {"href": address}, name)   ->   <a href="…">…</a>

A child is markup, which stands as it is, or any other text, which is escaped; so are the values of attributes. Only
`element` makes markup, so what comes from outside cannot become any. An attribute that is None or False is left out,
one that is True has no value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

VOID_ELEMENTS: Final = frozenset({"img", "input", "link", "meta"})
"""Those of ours that have no end."""

DOCTYPE: Final = "<!doctype html>"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[str] | None
Attributes = Mapping[str, str | bool | None]


def element(tag: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """An element with its attributes and children; children that are None are left out."""
    opening = f"<{tag}{''.join(_attribute(name, value) for name, value in (attributes or {}).items())}>"
    if tag in VOID_ELEMENTS:
        if children:
            raise ValueError(f"<{tag}> cannot have children")
        return Markup(opening)
    return Markup(f"{opening}{''.join(map(_content, children))}</{tag}>")


def document(root: Markup) -> bytes:
    """A whole page, as it is sent."""
    return f"{DOCTYPE}\n{root}\n".encode("utf-8", "replace")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(value)}"'


def _content(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    return escape(child) if isinstance(child, str) else "".join(map(_content, child))
