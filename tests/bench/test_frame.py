"""The bytes of the protocol, as far as Python speaks it."""

from __future__ import annotations

import pytest

from bench import frame
from bench.failure import LoadFailure, ServerRefused


def test_bodies_have_the_measured_size_and_are_the_same_in_every_run() -> None:
    assert {len(body) for body in frame.bodies(5)} == {frame.BODY_BYTES}
    assert frame.bodies(5) == frame.bodies(5)


def test_an_identify_is_laid_out_as_the_protocol_says() -> None:
    assert frame.identify(b"{}") == b"IDENTIFY\n\x00\x00\x00\x02{}"


def test_an_error_frame_becomes_a_refusal_that_shows_its_text() -> None:
    failure = frame.unexpected(frame.ERROR, b"E_BAD_TOPIC")
    assert isinstance(failure, ServerRefused)
    assert str(failure) == "nsqd answered E_BAD_TOPIC"


@pytest.mark.parametrize("kind", [frame.RESPONSE, frame.MESSAGE, 7])
def test_any_other_frame_out_of_place_becomes_a_failure(kind: int) -> None:
    failure = frame.unexpected(kind, b"what")
    assert isinstance(failure, LoadFailure)
    assert not isinstance(failure, ServerRefused)
