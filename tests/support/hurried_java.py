"""Settings of the Java that tests start, which lives for seconds."""

from __future__ import annotations

import pytest

OPTIONS = (
    # Little is compiled, and fast: more would not pay.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # The classes are those of Spark's release; looking through each for forged bytecode takes a twelfth of a start.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)


def hurry_java(patch: pytest.MonkeyPatch) -> None:
    """Every Java that is started from now on has these options."""
    patch.setenv("JDK_JAVA_OPTIONS", " ".join(OPTIONS))
