"""Inputs made of other inputs: flipped, cut, doubled, spliced, with tokens of the protocol put in.

Blind changes break what most inputs are made of: a size that stands before a body, and JSON. So two ways know them:

    a sized body    | int32 size, big-endian | body |    the body is changed, and the size follows
    JSON            a value anywhere in the document becomes another one, and the document is written anew

Everything follows from the dice that a `Mutator` is given, so a run can be repeated.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

EDGES = [0, 1, 2, 3, 4, 5, 8, 25, 26, 29, 30, 64, 65, 127, 128, 255, 256, 1000, 4096, 16384, 65535, 65536]
LARGE_EDGES = [1 << 20, (1 << 20) + 1, 5 << 20, (5 << 20) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]
"""Where limits and the sizes of integers lie. They are also written with a minus."""
JSON_VALUES: list[Any] = [None, True, False, 0, -1, 2**63, 10**30, 1.5, 1e300, "", "\n\x1b[2J", "x" * 300, [], {}, [[]]]
RAW_JSON = [b"1e999", b"NaN", b"-Infinity", b"9" * 5000, b'"\\ud800"', b"[" * 300, b'{"a":' * 300]
"""Values that `json.dumps` would not write."""
MAX_COPIES = 64
MAX_DIGITS = 4400
"""More than Python makes a number of; leading zeros count."""
MAX_SIZED_BYTES = 65536
"""Larger numbers before a body are not looked for."""

_DIGITS = re.compile(rb"[0-9]+")

Way = Callable[[bytearray], None]


class Mutator:
    """Makes new inputs for one target. Owned by its fuzzer."""

    def __init__(self, dice: random.Random, *, tokens: Sequence[bytes], max_bytes: int) -> None:
        self._dice = dice
        self._tokens = [*tokens] or [b"\0"]
        self._max_bytes = max_bytes
        self._simple_ways: list[Way] = [
            self._flip,
            self._set_byte,
            self._set_number,
            self._change_digits,
            self._insert_noise,
            self._insert_token,
            self._insert_token,
            self._overwrite_by_token,
            self._delete,
            self._repeat,
            self._cut_off,
        ]

    def mutate(self, data: bytes, other: bytes) -> bytes:
        """A new input, made of `data` and perhaps of a part of `other`."""
        dice = self._dice
        changed = bytearray(data)
        if dice.random() < 0.15:
            self._splice(changed, other)
        for _ in range(dice.choice((1, 1, 1, 2, 2, 4, 8))):
            way = dice.random()
            if way < 0.2 and self._change_json(changed):
                continue
            if way < 0.45 and self._change_sized_body(changed):
                continue
            dice.choice(self._simple_ways)(changed)
        return bytes(changed[: self._max_bytes])

    # Blind ways

    def _place(self, data: bytearray) -> int:
        """Anywhere, or behind a line: that is where commands and headers begin."""
        place = self._dice.randint(0, len(data))
        if self._dice.random() < 0.5:
            return place
        return data.find(b"\n", place) + 1 or place

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._dice.randrange(len(data))] ^= 1 << self._dice.randrange(8)

    def _set_byte(self, data: bytearray) -> None:
        if data:
            data[self._dice.randrange(len(data))] = self._dice.choice(b"\x00\x01\x7f\x80\xff\n\r :/#")

    def _set_number(self, data: bytearray) -> None:
        place = self._dice.randint(0, len(data))
        number = self._number()
        data[place : place + len(number)] = number

    def _change_digits(self, data: bytearray) -> None:
        """Another number in place of one that stands there in digits."""
        places = [found.span() for found in _DIGITS.finditer(data)]
        if places:
            start, end = self._dice.choice(places)
            zeros = self._dice.choice((0, 0, 0, 1, MAX_DIGITS))
            value = self._dice.choice((data[start:end], b"%d" % self._edge()))
            data[start:end] = b"0" * zeros + value

    def _edge(self) -> int:
        return self._dice.choice(EDGES + LARGE_EDGES) * self._dice.choice((1, 1, -1))

    def _number(self) -> bytes:
        value = self._edge()
        if self._dice.random() < 0.3:
            return b"%d" % value
        size = self._dice.choice((1, 2, 4, 4, 8))
        return (value % (1 << 8 * size)).to_bytes(size, self._dice.choice(("big", "big", "little")))

    def _insert_noise(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self._dice.randbytes(self._dice.choice((1, 2, 4, 16)))

    def _insert_token(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self._dice.choice(self._tokens)

    def _overwrite_by_token(self, data: bytearray) -> None:
        place, token = self._place(data), self._dice.choice(self._tokens)
        data[place : place + len(token)] = token

    def _delete(self, data: bytearray) -> None:
        start = self._place(data)
        del data[start : start + self._length(data)]

    def _repeat(self, data: bytearray) -> None:
        start = self._place(data)
        part = data[start : start + self._length(data)]
        copies = self._dice.choice((1, 1, 2, MAX_COPIES))
        data[start:start] = part * copies

    def _cut_off(self, data: bytearray) -> None:
        if self._dice.random() < 0.3:
            del data[self._dice.randint(0, len(data)) :]

    def _length(self, data: bytearray) -> int:
        return self._dice.randint(1, max(1, len(data) // self._dice.choice((1, 4, 16, 64))))

    def _splice(self, data: bytearray, other: bytes) -> None:
        start = self._dice.randint(0, len(other))
        place = self._place(data)
        data[place : self._dice.choice((place, len(data)))] = other[start : start + self._length(bytearray(other))]

    # Ways that know what they change

    def _change_sized_body(self, data: bytearray) -> bool:
        """Change a body that has its size before it; whether there is one."""
        found = next(_sized_bodies(data, self._dice.randint(0, len(data))), None) or next(_sized_bodies(data, 0), None)
        if found is None:
            return False
        start, size = found
        body = data[start + 4 : start + 4 + size]
        self._dice.choice(self._simple_ways)(body)
        data[start : start + 4 + size] = struct.pack(">I", len(body)) + body
        return True

    def _change_json(self, data: bytearray) -> bool:
        """Change a value in a JSON document; whether there is one. A size or a length before it follows."""
        start = data.find(b"{", self._dice.randint(0, len(data)))
        start = data.find(b"{") if start < 0 else start
        if start < 0:
            return False
        text = data[start:].decode("utf-8", "replace")
        try:
            document, end = json.JSONDecoder().raw_decode(text)
            written = self._with_another_value(document)
        except (ValueError, RecursionError):
            return False
        old_bytes = len(text[:end].encode())
        data[start : start + old_bytes] = written
        if start >= 4 and data[start - 4 : start] == struct.pack(">I", old_bytes):
            data[start - 4 : start] = struct.pack(">I", len(written))
        length = b"Content-Length: %d\r\n" % old_bytes
        place = data.rfind(length, 0, start)
        if place >= 0:
            data[place : place + len(length)] = b"Content-Length: %d\r\n" % len(written)
        return True

    def _with_another_value(self, document: Any) -> bytes:
        """The document, with one of its values changed, doubled or left out."""
        places = list(_places(document))
        if not places:
            return b"{}"
        holder, key = self._dice.choice(places)
        way = self._dice.randrange(8)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, list):
            holder.extend([holder[key]] * self._dice.choice((1, 3, MAX_COPIES)))
        elif way == 1:
            holder[self._dice.choice(self._tokens).decode("latin-1")] = holder[key]
        elif way == 2:
            holder[key] = [holder[key]]
        elif way == 3:
            other_holder, other_key = self._dice.choice(places)
            holder[key] = json.loads(json.dumps(other_holder[other_key]))  # a copy: a circle could not be written
        elif way == 4:
            holder[key] = _MARK
            raw = self._dice.choice(RAW_JSON)
            return json.dumps(document).encode().replace(json.dumps(_MARK).encode(), raw, 1)
        elif way == 5:
            holder[key] = self._edge()
        else:
            holder[key] = self._dice.choice(JSON_VALUES)
        return json.dumps(document).encode()


_MARK = "\x00 here \x00"


def _sized_bodies(data: bytearray, start: int) -> Iterator[tuple[int, int]]:
    """From a place on: where an int32 stands that is the size of what may be its body, and that size."""
    start = data.find(b"\0\0", start)
    while 0 <= start <= len(data) - 4:
        size = int.from_bytes(data[start : start + 4], "big")
        if 0 < size <= min(MAX_SIZED_BYTES, len(data) - start - 4):
            yield start, size
        start = data.find(b"\0\0", start + 1)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and object in the document, with each of its keys."""
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        members = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in members:
            yield holder, key
            waiting.append(value)
