"""What the broker refuses.

    BrokerError
    ├── ExitingError             the topic or channel is being deleted, or the broker is shutting down
    ├── StoreError               the disk refused to take a message
    │   ├── GateClosedError      no message is taken, because the disk is nearly full
    │   │   └── DrainingError    or because the node is to go
    │   ├── TopicFullError       as many messages wait in the topic as may wait
    │   └── JournalFailedError   the journal of this topic takes no message, or cannot be read at all
    ├── PolicyCycleError         dead letters would come back to the topic in which they died
    ├── TooManyConsumersError    the channel has as many consumers as it may have
    ├── MessageNotInFlightError  an answer to a message that is not in flight
    └── NotOwnerError            an answer to a message that is in flight to another consumer

Clients get to read their texts, which are the reference's where it has one.
"""

from __future__ import annotations


class BrokerError(Exception):
    """The broker refused; the text says why."""


class ExitingError(BrokerError):
    """The topic or channel is on its way out."""

    def __init__(self) -> None:
        super().__init__("exiting")


class StoreError(BrokerError):
    """Only the first `stored_count` messages could be stored."""

    def __init__(self, reason: str, *, stored_count: int = 0) -> None:
        super().__init__(reason)
        self.stored_count = stored_count


class GateClosedError(StoreError):
    """Nothing is taken for now, so that the disk does not fill up."""


class DrainingError(GateClosedError):
    """Nothing new is taken, because the node stops when it is empty."""


class TopicFullError(StoreError):
    """More messages would wait than the limits of the topic allow. Other topics are well."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic} is full: {reason}")
        self.topic = topic
        self.reason = reason


class JournalFailedError(StoreError):
    """Something is wrong with one journal, which the text names. Other topics are well."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"the journal of {topic}: {reason}")
        self.topic = topic
        self.reason = reason


class PolicyCycleError(BrokerError):
    """Messages of the topic would end up in the topic again, in letters within letters."""

    def __init__(self, topic: str, *, dead_letter_topic: str) -> None:
        super().__init__(f"dead letters of {topic} in {dead_letter_topic} would come back to {topic}")


class ClassicDeadLetterTopicError(BrokerError):
    """Messages that are on the disk would leave it for the memory of a topic that is not journaled."""

    def __init__(self, topic: str, *, dead_letter_topic: str) -> None:
        super().__init__(f"{topic} is journaled, but its dead letters would come to {dead_letter_topic}, which is not")


class TooManyConsumersError(BrokerError):
    def __init__(self, topic: str, channel: str, *, limit: int) -> None:
        super().__init__(f"consumers for {topic}:{channel} exceeds limit of {limit}")


class MessageNotInFlightError(BrokerError):
    """The message was answered before, timed out, or never existed."""

    def __init__(self) -> None:
        super().__init__("ID not in flight")


class NotOwnerError(BrokerError):
    """Only the connection that got a message may answer it."""

    def __init__(self) -> None:
        super().__init__("client does not own message")
