"""Plays a stream to a `CommandDecoder`, piece by piece, and tells what came out as a `Transcript`."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from emberq.wire import command
from emberq.wire.command import Command
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError, SilentClose
from emberq.wire.line import CommandLimits
from tests.wire.reference_decoder import AT_EOF, End, Event, Transcript


def commands_in(decoder: CommandDecoder) -> Iterator[Command]:
    """All the commands that the decoder can give now."""
    while (found := decoder.next_command()) is not None:
        yield found


def feed_and_take(decoder: CommandDecoder, piece: bytes) -> Command | None:
    """What `CommandDecoder.receive` does, in two steps."""
    decoder.feed(piece)
    return decoder.next_command()


def play(
    pieces: Iterable[bytes],
    limits: CommandLimits,
    *,
    receive: Callable[[CommandDecoder, bytes], Command | None] = CommandDecoder.receive,
    after_each: Callable[[CommandDecoder, bytes], None] | None = None,
) -> Transcript:
    """Give it the pieces as a session does, then the stream's end. `after_each` may look at the decoder between."""
    decoder = CommandDecoder(limits)
    events: list[tuple[int, Event]] = []
    position = 0
    try:
        for piece in pieces:
            position += len(piece)
            found = receive(decoder, piece)
            while found is not None:
                events += [(position, event) for event in flatten(found)]
                found = decoder.next_command()
            if after_each is not None:
                after_each(decoder, piece)
        position = AT_EOF
        decoder.eof()
    except FatalError as wrong:
        data = b"" if isinstance(wrong, SilentClose) else wrong.data
        return Transcript(events, End(data, wrong.topic, position))
    return Transcript(events, End(None))


def as_seen_in_pieces(transcript: Transcript, pieces: Sequence[bytes]) -> Transcript:
    """The transcript of one who sees the stream in pieces: everything happens with the piece that brings it about."""
    arrivals = list(accumulate(map(len, pieces)))

    def seen(position: int) -> int:
        return arrivals[bisect_left(arrivals, position)]

    end = transcript.end
    if end.position != AT_EOF:
        end = End(end.data, end.topic, seen(end.position))
    return Transcript([(seen(position), event) for position, event in transcript.events], end)


def flatten(found: Command) -> list[Event]:
    """The events of a command: a run is one event for each of its lines."""
    match found:
        case command.Publish():
            topic, bodies = found.topic.encode(), bodies_of(found.blob, found.ends)
            if found.verb == b"MPUB":
                assert found.reply_count == 1
                return [(b"MPUB", topic, *bodies)]
            assert (found.verb, found.reply_count) == (b"PUB", len(bodies))
            return [(b"PUB", topic, body) for body in bodies]
        case command.DeferredPublish():
            [body] = bodies_of(found.blob, [len(found.blob)])
            return [(b"DPUB", found.topic.encode(), found.defer_ms, body)]
        case command.Fin():
            assert found.lines == b"".join(b"FIN " + message_id + b"\n" for message_id in found.ids)
            return [(b"FIN", message_id) for message_id in found.ids]
        case _:
            return [_flatten_plain(found)]


def _flatten_plain(found: Command) -> Event:
    match found:
        case command.Identify(body):
            return (b"IDENTIFY", body)
        case command.Auth(secret):
            return (b"AUTH", secret)
        case command.Sub(topic, channel):
            return (b"SUB", topic.encode(), channel.encode())
        case command.Rdy(count):
            return (b"RDY", count)
        case command.Req(message_id, timeout_ms):
            return (b"REQ", message_id, timeout_ms)
        case command.Touch(message_id):
            return (b"TOUCH", message_id)
        case command.Nop():
            return (b"NOP",)
        case command.Cls():
            return (b"CLS",)
    raise AssertionError(f"{found} comes in runs")


def bodies_of(blob: bytes, ends: Sequence[int]) -> list[bytes]:
    """The messages of a blob; their sizes, their ends and the blob's length must agree."""
    bodies: list[bytes] = []
    for start, end in pairwise([0, *ends]):
        assert blob[start : start + 4] == struct.pack(">i", end - start - 4)
        bodies.append(blob[start + 4 : end])
    assert list(ends)[-1] == len(blob)
    return bodies
