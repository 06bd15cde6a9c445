"""What a handler in another process gets of a message: all there is to know, and no way to answer."""

from __future__ import annotations

from typing import NamedTuple, Self

from emberq.client.message import Message


class MessageSnapshot(NamedTuple):
    """A message as it was when it was handed over. The fields are those of `Message`."""

    id: bytes
    body: bytes
    attempts: int
    timestamp_ns: int
    address: str

    @classmethod
    def of(cls, message: Message) -> Self:
        return cls(message.id, message.body, message.attempts, message.timestamp_ns, message.address)
