"""The two TLS settings that are neither plain strings nor plain booleans."""

from __future__ import annotations

import enum

from emberq.base.kinds import Words


class TlsRequired(enum.IntEnum):
    """What `--tls-required` asks for, with the numbers NSQ's HTTP API shows."""

    NO = 0
    TCP_HTTPS = 1
    """TLS on TCP and HTTPS, while plain HTTP stays open."""
    YES = 2


class TlsVersion(enum.IntEnum):
    """The lowest version of TLS accepted; the numbers are those of the TLS protocol."""

    TLS_1_0 = 0x0301
    TLS_1_1 = 0x0302
    TLS_1_2 = 0x0303
    TLS_1_3 = 0x0304


TLS_REQUIRED = Words(
    "bool|tcp-https",
    {"true": TlsRequired.YES, "false": TlsRequired.NO, "tcp-https": TlsRequired.TCP_HTTPS},
    aliases={"1": TlsRequired.YES, "t": TlsRequired.YES, "0": TlsRequired.NO, "f": TlsRequired.NO},
    stands_alone=True,
)

TLS_MIN_VERSION = Words(
    "version",
    {
        "tls1.0": TlsVersion.TLS_1_0,
        "tls1.1": TlsVersion.TLS_1_1,
        "tls1.2": TlsVersion.TLS_1_2,
        "tls1.3": TlsVersion.TLS_1_3,
    },
    aliases={"": TlsVersion.TLS_1_0},  # an empty key in a config file means the default
    refusal="unknown tlsVersionOption {}",
)
