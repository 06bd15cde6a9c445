"""The few of very many clients that are to be shown.

600 consumers of a channel, each connected to 80 nodes, are 48,000 clients: nobody reads such a list. What is not to be
shown is let go of answer by answer. That keeps memory small, and to let go of all at once would hold up all threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from emberq.cluster.stats import ClientStats


class ClientSieve:
    """Keeps the first `limit` of the clients that have every word of `search` in what they are called."""

    def __init__(self, *, search: str = "", limit: int) -> None:
        self._words = search.lower().split()
        self._limit = limit
        self.kept: list[ClientStats] = []
        """By node, and within a node the nearest first."""
        self.match_count = 0
        """Of all that were taken."""

    def take(self, clients: Sequence[ClientStats]) -> None:
        """Look through the clients of one node. Which are kept does not depend on the order of the nodes."""
        matching = [client for client in clients if self._matches(client)] if self._words else clients
        self.match_count += len(matching)
        self.kept = sorted([*self.kept, *matching], key=_place)[: self._limit]

    def _matches(self, client: ClientStats) -> bool:
        called = (client.client_id, client.hostname, client.remote_address, client.user_agent, client.node)
        text = "\n".join(called).lower()
        return all(word in text for word in self._words)


def _place(client: ClientStats) -> tuple[str, int, str, str, str, str]:
    return (
        client.node,
        client.distance,
        client.topology_region,
        client.topology_zone,
        client.client_id,
        client.remote_address,
    )
