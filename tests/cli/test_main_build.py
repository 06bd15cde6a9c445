"""What is told of the build is what runs."""

from __future__ import annotations

from pathlib import Path

import emberq.wire.decoder
from emberq.cli.main import is_compiled


def test_a_build_is_compiled_if_its_decoder_is() -> None:
    assert is_compiled() == (Path(emberq.wire.decoder.__file__).suffix != ".py")
