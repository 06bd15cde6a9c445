"""Statistics in the text format of Prometheus.

    # HELP nsqd_channel_depth Messages waiting in the channel, in memory and on disk.
    # TYPE nsqd_channel_depth gauge
    nsqd_channel_depth{topic="orders",channel="billing"} 17

A daemon lists its metrics as a table of `Family`: name, type, meaning, and a function that takes the samples from a
source. What the source is, the daemon decides; all families are rendered from one, and speak of the same moment.

Names follow Prometheus: base units (seconds, bytes), `_total` at the end of what only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, int | float]
"""Labels as they are written, `{topic="t"}` or nothing, and the value."""

Source_contra = TypeVar("Source_contra", contravariant=True)
"""What samples are taken from: whoever tells more can stand in for one who tells less."""

Sampler = Callable[[Source_contra], Iterable[Sample]]
"""Where a family gets its samples from."""


@dataclass(frozen=True, slots=True)
class Family(Generic[Source_contra]):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Sampler[Source_contra]


def gauge(name: str, meaning: str, samples: Sampler[Source_contra]) -> Family[Source_contra]:
    """A number that goes up and down."""
    return Family(name, "gauge", meaning, samples)


def counter(name: str, meaning: str, samples: Sampler[Source_contra]) -> Family[Source_contra]:
    """A number that only grows while the daemon runs."""
    return Family(name, "counter", meaning, samples)


def single(value: Callable[[Source_contra], int | float]) -> Sampler[Source_contra]:
    """One sample, without labels."""
    return lambda source: [("", value(source))]


def labels(**values: str) -> str:
    """Labels as they are written."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def with_labels(written: str, **more: str) -> str:
    """Labels as they are written, and more of them."""
    return f"{written[:-1]},{labels(**more)[1:]}"


def render(families: Iterable[Family[Source_contra]], source: Source_contra) -> bytes:
    """The families as Prometheus reads them, in their order."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} {family.kind}\n")
        lines += [f"{family.name}{written} {value}\n" for written, value in family.samples(source)]
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
