"""Finding out at once whether anybody is there.

A producer waits for nsqds that are down, as a service should. A person at a terminal would rather hear of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from emberq.client import ClientConfig, Connection, NsqError


async def check_any_is_reachable(addresses: Iterable[str], config: ClientConfig) -> None:
    """Return if an nsqd lets us in; else raise what the last one said."""
    refusal: NsqError | None = None
    for address in addresses:
        try:
            connection = await Connection.open(address, config)
        except NsqError as failure:
            refusal = failure
        else:
            await connection.close()
            return
    if refusal is not None:
        raise refusal
