"""How large a message one nsqd takes, as far as a producer knows it; so that one that is too large harms no other.

nsqd answers a command that is too large with an error and closes the connection, and with it goes what is under way of
all other publishers. So such a command should not be sent:

    told       An emberq nsqd tells its limits in the answer to IDENTIFY. What is above them is refused here.
    learned    NSQ's own nsqd does not, but its error does: "PUB message too big 105 > 100". What it said counts for
               LEARNED_FOR_S; then it is put to the test again, because nsqd may have been restarted with other limits.
    proven     Of an nsqd that has said neither, what is larger than anything it has confirmed is a suspect. The `Link`
               sends suspects by a connection of their own, one at a time.

A small command, up to `harmless_bytes`, is none of this; so most messages cost one comparison. There are two limits:
for the body of a message (--max-msg-size), and for that of an MPUB (--max-body-size), which holds many.
"""

from __future__ import annotations

from emberq.client.error import MessageTooLargeError
from emberq.wire import error as wire_error

UNSUSPECTED_BYTES = 64 * 1024
"""No nsqd is set to take less than this in practice. One that is answers with an error, and the limit is learned."""
LEARNED_FOR_S = 60.0
INT32_BYTES = 4

_MESSAGE = wire_error.BAD_MESSAGE.decode()
_BODY = wire_error.BAD_BODY.decode()
"""The codes with which nsqd refuses what is too large; they name the two limits here."""
_FLAGS = {_MESSAGE: "--max-msg-size", _BODY: "--max-body-size"}
_SUBJECTS = {_MESSAGE: "a message", _BODY: "a batch"}


class SizeLimits:
    """What is known of one nsqd. Owned by its `Link`; times are those of the event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.harmless_bytes = UNSUSPECTED_BYTES
        """A command of so many bytes, its name included, is within all limits that are known."""
        self._limits: dict[str, int] = {}
        """By the code of the error; without those that are not known."""
        self._known_until_s: float | None = None
        """When what was learned is no longer believed; None: it was told."""
        self._proven = {_MESSAGE: UNSUSPECTED_BYTES, _BODY: UNSUSPECTED_BYTES}
        """The largest that nsqd has confirmed."""

    @property
    def max_message_bytes(self) -> int:
        """The largest body of a message; 0 if it is not known."""
        return self._limits.get(_MESSAGE, 0)

    @property
    def max_body_bytes(self) -> int:
        """The largest body of an MPUB; 0 if it is not known."""
        return self._limits.get(_BODY, 0)

    def told(self, *, max_msg_size: int, max_body_size: int) -> None:
        """What nsqd said when it was connected to; 0: nothing, and then what was learned still holds."""
        if max_msg_size and max_body_size:
            self._know({_MESSAGE: max_msg_size, _BODY: max_body_size}, until_s=None)
        elif self._known_until_s is None:
            self._know({}, until_s=None)

    def refused(self, refusal: MessageTooLargeError, *, now_s: float) -> None:
        """What nsqd said about a command that was too large."""
        if refusal.code in _FLAGS:
            self._know({**self._limits, refusal.code: refusal.limit_bytes}, until_s=now_s + LEARNED_FOR_S)

    def _know(self, limits: dict[str, int], *, until_s: float | None) -> None:
        self._limits = limits
        self._known_until_s = until_s
        self.harmless_bytes = min(limits.values(), default=UNSUSPECTED_BYTES)
        if len(limits) < len(_FLAGS):
            self.harmless_bytes = min(self.harmless_bytes, UNSUSPECTED_BYTES)

    def is_suspect(self, command: bytes, *, now_s: float) -> bool:
        """Whether nsqd may find the PUB, MPUB or DPUB too large; `MessageTooLargeError` if it certainly does."""
        if self._known_until_s is not None and now_s >= self._known_until_s:
            self._know({}, until_s=None)
        code, size_bytes = _measured(command)
        limit_bytes = self._limits.get(code)
        if limit_bytes is None:
            return size_bytes > self._proven[code]
        if size_bytes > limit_bytes:
            raise self.too_large(size_bytes, limit_bytes, code=code)
        return False

    def confirmed(self, command: bytes) -> None:
        """nsqd has taken a suspect."""
        code, size_bytes = _measured(command)
        self._proven[code] = max(self._proven[code], size_bytes)

    def too_large(self, size_bytes: int, limit_bytes: int, *, code: str = _MESSAGE) -> MessageTooLargeError:
        """What to raise for a message, or a batch, that is not sent because it is too large."""
        text = (
            f"{_SUBJECTS[code]} of {size_bytes} bytes was not sent: "
            f"nsqd {self._address} takes no more than {limit_bytes} ({_FLAGS[code]})"
        )
        return MessageTooLargeError(code, text, size_bytes=size_bytes, limit_bytes=limit_bytes)


def _measured(command: bytes) -> tuple[str, int]:
    """Which limit a command is subject to, and its size: what follows the line and the int32 behind it."""
    body_bytes = len(command) - command.index(b"\n") - 1 - INT32_BYTES
    return (_BODY if command.startswith(b"MPUB") else _MESSAGE), body_bytes
