from __future__ import annotations

from itertools import pairwise

import pytest

from emberq.cluster.topology import precedence


def test_versions_are_ordered_as_semantic_versions_are() -> None:
    ordered = ["0.9.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0", "1.2.0", "1.10.0"]
    assert all(precedence(older) < precedence(newer) for older, newer in pairwise(ordered))


def test_emberq_is_as_new_as_the_nsq_it_is_compatible_with() -> None:
    assert precedence("1.3.0-emberq") == precedence("1.3.0")


def test_what_was_built_from_does_not_make_a_version_newer() -> None:
    assert precedence("1.3.0+abc123") == precedence("v1.3.0")


@pytest.mark.parametrize("text", ["", "one", "1.3", "1.3.x", "1.3.0-", "١.٢.٣"])
def test_what_cannot_be_read_counts_as_zero(text: str) -> None:
    assert precedence(text) == precedence("0.0.0")
