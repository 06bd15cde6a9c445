"""Which channels give up on messages, and where those go.

Dead letters must not come back to the topic they died in: neither directly nor by way of the policies of other
channels. Every round would wrap them into one more envelope.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from emberq.broker.channel import Channel
from emberq.broker.error import PolicyCycleError
from emberq.broker.store import Store
from emberq.storage.errors import StorageError
from emberq.storage.policy import ChannelPolicy, PolicyEntry
from emberq.wire.name import is_ephemeral

_Key: TypeAlias = tuple[str, str]
"""Topic and channel."""

_log = logging.getLogger(__name__)


class PolicyBook:
    """The policies of all channels. Owned by the broker.

    Those of ephemeral channels are not saved. One that was saved for a channel that does not exist is kept for it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._policies: dict[_Key, ChannelPolicy] = {}

    def load(self) -> None:
        """Bring back the policies of an earlier run. StorageError if they cannot be read."""
        for entry in self._store.load_policies():
            self._policies[entry.topic, entry.channel] = entry.policy

    def get(self, channel: Channel) -> ChannelPolicy | None:
        return self._policies.get(_key(channel))

    def set(self, channel: Channel, policy: ChannelPolicy | None) -> None:
        """Replace the policy of a channel; None removes it. PolicyCycleError, or StorageError: nothing has changed."""
        if policy == self.get(channel):
            return
        if policy is not None:
            self.check(channel.topic_name, channel.name, policy)
        changed = dict(self._policies)
        if policy is None:
            changed.pop(_key(channel), None)
        else:
            changed[_key(channel)] = policy
        self._save(changed)
        self._policies = changed

    def forget(self, channel: Channel) -> None:
        """The channel has been deleted."""
        try:
            self.set(channel, None)
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to remove its policy - %s", channel.name, failure)

    def check(self, topic: str, channel: str, policy: ChannelPolicy) -> None:
        """PolicyCycleError if the way that dead letters would take leads to where it begins."""
        reached = {policy.dead_letter_topic}
        newly = reached
        while newly:
            if topic in newly:
                raise PolicyCycleError(topic, dead_letter_topic=policy.dead_letter_topic)
            further = {
                other.dead_letter_topic
                for key, other in self._policies.items()
                if key[0] in newly and key != (topic, channel)
            }
            newly = further - reached
            reached = reached | newly

    def _save(self, policies: dict[_Key, ChannelPolicy]) -> None:
        entries = [
            PolicyEntry(topic, channel, policy)
            for (topic, channel), policy in policies.items()
            if not is_ephemeral(topic) and not is_ephemeral(channel)
        ]
        self._store.save_policies(entries)


def _key(channel: Channel) -> _Key:
    return channel.topic_name, channel.name
