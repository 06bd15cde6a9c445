"""The registration database as the specification describes it: one flat map of triples, searched from end to end.

    (category, key, subkey) -> producer id -> when it was tombstoned, or None

Slow and obvious on purpose; the real registry is compared with it.
"""

from __future__ import annotations

from emberq.base.clock import Clock

Key = tuple[str, str, str]

CLIENT: Key = ("client", "", "")
EPHEMERAL = "#ephemeral"


class RegistryModel:
    """All registrations, by the book."""

    def __init__(self, *, clock: Clock, inactive_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        self._clock = clock
        self._inactive_timeout_ns = inactive_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        self.keys: dict[Key, dict[str, int | None]] = {}
        self._heard_ns: dict[str, int] = {}
        self._nodes: dict[str, str] = {}

    def find(self, category: str, key: str, subkey: str) -> list[Key]:
        """The keys that match; `*` matches anything."""
        return [
            found
            for found in self.keys
            if found[0] == category and key in ("*", found[1]) and subkey in ("*", found[2])
        ]

    def _add(self, key: Key, producer_id: str) -> None:
        self.keys.setdefault(key, {}).setdefault(producer_id, None)

    def _remove(self, key: Key, producer_id: str, *, name: str) -> None:
        """Unregister one key."""
        if key in self.keys:
            self.keys[key].pop(producer_id, None)
            if not self.keys[key] and name.endswith(EPHEMERAL):
                del self.keys[key]

    # What producers do.

    def connect(self, producer_id: str, *, node: str) -> None:
        self._heard_ns[producer_id] = self._clock.monotonic_ns()
        self._nodes[producer_id] = node
        self._add(CLIENT, producer_id)

    def hear(self, producer_id: str) -> None:
        self._heard_ns[producer_id] = self._clock.monotonic_ns()

    def register(self, producer_id: str, topic: str, channel: str | None) -> None:
        if channel is not None:
            self._add(("channel", topic, channel), producer_id)
        self._add(("topic", topic, ""), producer_id)

    def unregister(self, producer_id: str, topic: str, channel: str | None) -> list[str]:
        if channel is not None:
            self._remove(("channel", topic, channel), producer_id, name=channel)
            return []
        held = [key for key in self.find("channel", topic, "*") if producer_id in self.keys[key]]
        for key in held:
            self._remove(key, producer_id, name=key[2])
        self._remove(("topic", topic, ""), producer_id, name=topic)
        return [key[2] for key in held]

    def disconnect(self, producer_id: str) -> None:
        for producers in self.keys.values():
            producers.pop(producer_id, None)

    # What operators do.

    def create(self, topic: str, channel: str | None) -> None:
        self.keys.setdefault(("topic", topic, ""), {})
        if channel is not None:
            self.keys.setdefault(("channel", topic, channel), {})

    def delete_topic(self, topic: str) -> None:
        for key in self.find("channel", topic, "*") + self.find("topic", topic, ""):
            del self.keys[key]

    def delete_channel(self, topic: str, channel: str) -> bool:
        return self.keys.pop(("channel", topic, channel), None) is not None

    def tombstone(self, topic: str, node: str) -> None:
        for key in self.find("topic", topic, ""):
            for producer_id in self.keys[key]:
                if self._nodes[producer_id] == node:
                    self.keys[key][producer_id] = self._clock.monotonic_ns()

    # What anybody may ask.

    def topics(self) -> set[str]:
        return {key[1] for key in self.find("topic", "*", "")}

    def channels(self, topic: str) -> set[str]:
        return {key[2] for key in self.find("channel", topic, "*")}

    def producers_of(self, topic: str) -> set[str]:
        return {
            producer_id
            for key in self.find("topic", topic, "")
            for producer_id, tombstoned_ns in self.keys[key].items()
            if self._is_active(producer_id) and not self._hides(tombstoned_ns)
        }

    def nodes(self) -> dict[str, dict[str, bool]]:
        """Active producers, with their topics and whether each is tombstoned."""
        return {
            producer_id: {
                key[1]: self._hides(self.keys[key][producer_id])
                for key in self.find("topic", "*", "")
                if producer_id in self.keys[key]
            }
            for producer_id in self.keys.get(CLIENT, {})
            if self._is_active(producer_id)
        }

    def _is_active(self, producer_id: str) -> bool:
        return self._clock.monotonic_ns() - self._heard_ns[producer_id] <= self._inactive_timeout_ns

    def _hides(self, tombstoned_ns: int | None) -> bool:
        return tombstoned_ns is not None and self._clock.monotonic_ns() - tombstoned_ns < self._tombstone_lifetime_ns
