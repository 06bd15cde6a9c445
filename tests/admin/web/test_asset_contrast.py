"""Colours that can be told apart: text has a contrast of 4.5:1 on its ground (WCAG, level AA), light and dark."""

from __future__ import annotations

import re

import pytest

from emberq.admin.web.asset import BUILT_IN

TOKEN = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
LEAST_FOR_TEXT = 4.5
LEAST_FOR_SHAPES = 3.0

TEXT = [
    ("ink", "ground"),
    ("ink", "surface"),
    ("ink", "raised"),
    ("ink", "accent-ground"),
    ("ink-soft", "ground"),
    ("ink-soft", "surface"),
    ("ink-soft", "raised"),
    ("accent", "ground"),
    ("accent", "surface"),
    ("accent-ink", "accent"),
    ("danger", "ground"),
    ("danger", "surface"),
    ("danger", "danger-ground"),
    ("danger-ink", "danger-fill"),
    ("warning", "surface"),
    ("warning", "warning-ground"),
    ("good", "good-ground"),
]
SHAPES = [("line-strong", "surface"), ("line-chart", "surface"), ("line-chart-second", "surface"), ("good", "surface")]


def luminance(colour: str) -> float:
    """As WCAG defines it."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def colours(theme: str) -> dict[str, str]:
    found = TOKEN.findall((BUILT_IN / "tokens.css").read_text())
    return {name: light if theme == "light" else dark for name, light, dark in found}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT)
def test_text_stands_out_from_its_ground(theme: str, text: str, ground: str) -> None:
    colour = colours(theme)
    assert contrast(colour[text], colour[ground]) >= LEAST_FOR_TEXT


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("shape", "ground"), SHAPES)
def test_frames_and_lines_of_charts_stand_out_too(theme: str, shape: str, ground: str) -> None:
    colour = colours(theme)
    assert contrast(colour[shape], colour[ground]) >= LEAST_FOR_SHAPES
