"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import targets_client, targets_cluster, targets_daemon, targets_spark, targets_storage, targets_wire
from tests.fuzz.engine import Target

_MODULES = (targets_wire, targets_storage, targets_daemon, targets_client, targets_cluster, targets_spark)
TARGETS: dict[str, type[Target]] = {target.name: target for module in _MODULES for target in module.TARGETS}
