"""What is said to mypyc means nothing to Python."""

from __future__ import annotations

from emberq.base.compiled import mypyc_attr


def test_a_class_stays_what_it_is() -> None:
    class Plain:
        """Any class."""

    assert mypyc_attr(acyclic=True, free_list_len=1)(Plain) is Plain
