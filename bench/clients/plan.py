"""A job and the library that does it."""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import cast

from bench.clients.job import Job
from bench.crew import Load
from bench.failure import LoadFailure

OURS = "emberq"
OTHERS = ("pynsq", "gnsq", "ansq")
LIBRARIES = (OURS, *OTHERS)


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """Travels to a worker process, which is the first to import the library."""

    library: str
    job: Job

    def open(self) -> Load:
        """Its module `<library>_driver` has a class `<Library>Load`, which is made from a job."""
        try:
            driver = importlib.import_module(f"bench.clients.{self.library}_driver")
        except ModuleNotFoundError as error:
            raise LoadFailure(f"{self.library} cannot be measured: there is no module {error.name}") from error
        logging.disable()  # some complain at length about being cut off; what matters to us is counted
        return cast(Load, getattr(driver, f"{self.library.capitalize()}Load")(self.job))
