"""A setting that is one number with a fraction, such as `--sample=0.25`."""

from __future__ import annotations

import math
import re

from emberq.base.kinds import OUT_OF_RANGE, PARSE_ERROR, Kind


class Float(Kind[float]):
    """A decimal number, perhaps with an exponent; neither infinite nor "not a number"."""

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


FLOAT = Float()
