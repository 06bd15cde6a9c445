"""Bytes that are wrong in some way, for each language that nsqd speaks.

All of it follows from the `dice` a test hands in, so that a failing round can be repeated. Most is made from
something right: pure noise is refused at its first byte and reaches little of nsqd, while a good request with one
broken part gets far. Bombs are streams that are right, but stand for a thousand times as many plain bytes.
"""

from __future__ import annotations

import random
import ssl
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress

from tests.support.raw_client import mpub_body
from tests.wire import reference_snappy as snappy

TOPIC = b"fuzz#ephemeral"
MIB = 1024 * 1024

SIZES = [-(1 << 31), -1, 0, 1, 3, 4, 5, 25, 1 << 16, MIB, MIB + 1, 5 * MIB + 1, (1 << 31) - 1]
NUMBERS = [b"", b"-1", b"0", b"1", b"2501", b"1e3", b"0x10", b"99999999999999999999", b"9" * 5_000, b"\xd9\xa1"]
NAMES = [TOPIC, b"fuzz", b"", b"#ephemeral", b"a" * 65, b"fuzz fuzz", b"../../fuzz", b"f\x00zz", b"\xff\xfe", b"%2e%2e"]

HOSTILE_JSON = [
    b"",
    b"null",
    b"[]",
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"heartbeat_interval":1e999}',
    b'{"heartbeat_interval":' + b"9" * 5_000 + b"}",
    b'{"msg_timeout":NaN,"sample_rate":-Infinity}',
    b'{"client_id":"\\ud800","hostname":"\\u0000"}',
    b'{"feature_negotiation":"yes","snappy":1,"tls_v1":[]}',
    b'{"feature_negotiation":true,"snappy":true,"deflate":true}',
    b'{"output_buffer_size":-2147483649,"output_buffer_timeout":1}',
]


def damaged(dice: random.Random, data: bytes) -> bytes:
    """The same with some parts flipped, cut off, doubled, overwritten or inserted."""
    broken = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        start = dice.randrange(len(broken) + 1)
        end = min(len(broken), start + dice.randrange(1, 40))
        match dice.randrange(5):
            case 0 if broken:
                broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
            case 1:
                del broken[start:]
            case 2:
                broken[start:start] = broken[start:end]
            case 3:
                broken[start:end] = dice.choice([b"\x00", b"\xff", b"\n", b"\r\n"]) * (end - start)
            case _:
                broken[start:start] = dice.randbytes(dice.randrange(1, 40))
    return bytes(broken)


# HTTP


def _http(head: bytes, body: bytes = b"", *, headers: bytes = b"") -> bytes:
    return b"%b\r\nHost: localhost\r\nContent-Length: %d\r\n%b\r\n%b" % (head, len(body), headers, body)


GOOD_REQUESTS = [
    _http(b"GET /ping HTTP/1.1"),
    _http(b"GET /stats?format=json&topic=fuzz HTTP/1.1", headers=b"Accept-Encoding: gzip\r\n"),
    _http(b"GET /info HTTP/1.0", headers=b"Connection: keep-alive\r\n"),
    _http(b"POST /pub?topic=fuzz%23ephemeral&defer=10 HTTP/1.1", b"body"),
    _http(b"POST /mpub?topic=fuzz%23ephemeral HTTP/1.1", b"one\ntwo\n\nthree"),
    _http(b"POST /mpub?topic=fuzz%23ephemeral&binary=true HTTP/1.1", mpub_body([b"one", b"two"])),
    _http(b"POST /channel/create?topic=fuzz%23ephemeral&channel=c%23ephemeral HTTP/1.1"),
    b"POST /pub?topic=fuzz%23ephemeral HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
]

ODD_REQUESTS = [
    b"\r\n" * 500,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /ping HTTP/9.9\r\n\r\n",
    b"GET  HTTP/1.1\r\n\r\n",
    b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /ping?" + b"a=b&" * 10_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /pub?topic=%zz%&&=&topic=fuzz HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
    b"GET /ping HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
    b"GET /ping HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nno colon here\r\n folded\r\n\r\n",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nx",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"e" * 100_000 + b"\r\nx\r\n0\r\n\r\n",
    b"POST /pub?topic=fuzz HTTP/1.1\r\nExpect: a miracle\r\nContent-Length: 1\r\n\r\nx",
    b"POST /mpub?topic=fuzz&binary=true HTTP/1.1\r\nContent-Length: 8\r\n\r\n\x7f\xff\xff\xff\x00\x00\x00\x01",
    b"PUT /config/nsqlookupd_tcp_addresses HTTP/1.1\r\nContent-Length: 6\r\n\r\n[[[[[[",
    b"GET /ping HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x00\xff",
]


def http_request(dice: random.Random) -> bytes:
    """One odd request, or several pipelined ones with damage somewhere."""
    if dice.random() < 0.3:
        return dice.choice(ODD_REQUESTS)
    return damaged(dice, b"".join(dice.choices(GOOD_REQUESTS, k=dice.randrange(1, 4))))


# V2


def _sized(dice: random.Random, body: bytes) -> bytes:
    """A body behind its size, or behind another one."""
    size = len(body) if dice.random() < 0.7 else dice.choice(SIZES)
    return struct.pack(">i", size) + body


def _command(dice: random.Random) -> bytes:
    """A command whose parts are each right or wrong."""
    name, number = dice.choice([TOPIC, dice.choice(NAMES)]), dice.choice([b"1", dice.choice(NUMBERS)])
    message_id = dice.choice([b"0123456789abcdef", dice.randbytes(16), b"", b"short"])
    bodies = [dice.randbytes(dice.randrange(50)) for _ in range(dice.randrange(4))]
    makers: list[Callable[[], bytes]] = [
        lambda: b"NOP\n",
        lambda: b"CLS\n",
        lambda: b"RDY %b\n" % number,
        lambda: b"FIN %b\n" % message_id,
        lambda: b"TOUCH %b\n" % message_id,
        lambda: b"REQ %b %b\n" % (message_id, number),
        lambda: b"SUB %b c#ephemeral\n" % name,
        lambda: b"PUB %b\n%b" % (name, _sized(dice, b"".join(bodies))),
        lambda: b"DPUB %b %b\n%b" % (name, number, _sized(dice, b"body")),
        lambda: b"MPUB %b\n%b" % (name, _sized(dice, damaged(dice, mpub_body(bodies)))),
        lambda: b"AUTH\n%b" % _sized(dice, b"secret"),
        lambda: b"IDENTIFY\n%b" % _sized(dice, dice.choice(HOSTILE_JSON)),
        lambda: dice.randbytes(dice.randrange(1, 2_000)),
    ]
    return dice.choice(makers)()


def v2_commands(dice: random.Random) -> bytes:
    """Some commands, whole or damaged as a whole, to follow the magic."""
    commands = b"".join(_command(dice) for _ in range(dice.randrange(1, 8)))
    return commands if dice.random() < 0.5 else damaged(dice, commands)


# Compressed V2

GOOD_COMMANDS = b"NOP\n" * 10 + b"PUB %b\n\x00\x00\x03\xe8%b" % (TOPIC, b"x" * 1_000) + b"NOP\n"


def deflate_stream(dice: random.Random) -> bytes:
    """A deflated stream of good commands with damage in it, or of bad ones."""
    commands = dice.choice([GOOD_COMMANDS, v2_commands(dice)])
    deflater = zlib.compressobj(dice.randrange(1, 10), zlib.DEFLATED, -15)
    flush = dice.choice([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_FINISH])
    return damaged(dice, deflater.compress(commands) + deflater.flush(flush))


def snappy_stream(dice: random.Random) -> bytes:
    """Snappy's frames around good commands with damage in them, around bad commands, or of no known kind."""
    chunks = [
        snappy.compressed_chunk([snappy.Literal(GOOD_COMMANDS)]),
        snappy.uncompressed_chunk(GOOD_COMMANDS),
        snappy.uncompressed_chunk(v2_commands(dice)[:60_000] or b"\n"),
        snappy.chunk(0x00, dice.randbytes(4) + snappy.varint(dice.choice([0, 65_537, 1 << 31])) + b"\x00"),
        snappy.chunk(dice.randrange(256), dice.randbytes(dice.randrange(100))),
        snappy.chunk(0x80, b"\x00" * 50_000),
    ]
    stream = snappy.IDENTIFIER + b"".join(dice.choices(chunks, k=dice.randrange(1, 5)))
    return stream if dice.random() < 0.3 else damaged(dice, stream)


def _deflated_over_and_over(plain: bytes, times: int) -> bytes:
    """A stream of the same plain bytes many times. A full flush forgets what was before, so blocks can be repeated."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(plain) + deflater.flush(zlib.Z_FULL_FLUSH)) * times


def _snappy_over_and_over(plain: bytes, times: int) -> bytes:
    """A stream of chunks of 64 KiB, each the same few plain bytes many times."""
    copy = snappy.Copy(offset=len(plain), length=64, offset_bytes=2)
    copies = [copy] * ((snappy.MAX_PLAIN_BYTES - len(plain)) // copy.length)
    return snappy.IDENTIFIER + snappy.compressed_chunk([snappy.Literal(plain), *copies]) * times


DEFLATE_BOMBS = {
    "1 GiB without a line feed": _deflated_over_and_over(bytes(MIB), 1024),
    "a million NOPs": _deflated_over_and_over(b"NOP\n" * 10_000, 100),
    "a body of 2 GiB": _deflated_over_and_over(b"PUB %b\n\x7f\xff\xff\xff" % TOPIC + bytes(MIB), 1),
}
SNAPPY_BOMBS = {
    "128 MiB without a line feed": _snappy_over_and_over(bytes(64), 2048),
    "a million NOPs": _snappy_over_and_over(b"NOP\n" * 16, 64),
}


# TLS


def _client_hello() -> bytes:
    """The start of a good handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):  # the server does not answer here
        handshake.do_handshake()
    return outgoing.read()


CLIENT_HELLO = _client_hello()
"""Its random numbers are all that differs between two runs."""


def tls_handshake(dice: random.Random) -> bytes:
    """What may arrive instead of a handshake."""
    return dice.choice(
        [
            dice.randbytes(dice.randrange(1, 2_000)),
            b"\x16\x03\x01" + struct.pack(">H", dice.randrange(65_536)) + dice.randbytes(200),
            b"\x15\x03\x03\x00\x02\x02\x28",  # a fatal alert
            b"GET / HTTP/1.1\r\n\r\n",
            b"  V2NOP\n",
            CLIENT_HELLO,
            CLIENT_HELLO * 3,
            damaged(dice, CLIENT_HELLO),
            damaged(dice, CLIENT_HELLO),
        ]
    )
