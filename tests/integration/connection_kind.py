"""The kinds of connection that every client library is tried over: encrypted, compressed, authorized.

For each kind there are two halves that must fit: nsqd's flags, and the fields of the plan that tell the
driver how to connect. `prepared` makes both, with fresh certificates and an authorization server that runs
as long as it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.contract import CHANNEL, TOPIC, Outcome, carry_out
from tests.integration.listening import ANY_HTTPS_PORT
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import Authority

SECRET = "open sesame"

# A tenth of the usual plan, with every command but TOUCH. Nothing waits for a timeout, so none is short
# enough to strike on a busy machine. At most 50 messages are in flight, some 15 kB, which arrive in one
# piece: pynsq gives up a compressed connection when it reads a piece that holds nothing to decompress yet.
BRIEF: dict[str, Any] = {
    "message_count": 1_000,
    "single_count": 200,
    "batch_size": 50,
    "max_in_flight": 50,
    "msg_timeout_ms": 30_000,
    "defer_ms": 300,
    "linger_ms": 200,
    "requeued": tuple(range(0, 500, 50)),
    "deferred": tuple(range(1, 200, 20)),
    "abandoned": (),
    "touched": (),
}


@dataclass(frozen=True, kw_only=True)
class ConnectionKind:
    """What a connection is made of."""

    tls: bool = False
    client_certificate: bool = False
    compression: str = ""
    auth: bool = False

    def __str__(self) -> str:
        parts = {
            "tls": self.tls,
            "certificate": self.client_certificate,
            self.compression: bool(self.compression),
            "auth": self.auth,
        }
        return "+".join(name for name, is_used in parts.items() if is_used)


EVERY_KIND = (
    ConnectionKind(tls=True),
    ConnectionKind(compression="snappy"),
    ConnectionKind(compression="deflate"),
    ConnectionKind(tls=True, compression="snappy"),
    ConnectionKind(tls=True, compression="deflate"),
    ConnectionKind(auth=True),
    ConnectionKind(tls=True, client_certificate=True, compression="deflate", auth=True),
)


@dataclass
class Preparation:
    """The two halves of a connection, as they are put together."""

    nsqd_flags: list[str]
    plan_fields: dict[str, Any]


def carry_out_over(kind: ConnectionKind, driver: Sequence[str], *, folder: Path) -> Outcome:
    """Runs a driver through the brief plan over this kind of connection, against an nsqd that accepts no lesser."""
    with prepared(kind, folder) as preparation:
        return carry_out(driver, *preparation.nsqd_flags, folder=folder, **BRIEF, **preparation.plan_fields)


@contextmanager
def prepared(kind: ConnectionKind, folder: Path) -> Iterator[Preparation]:
    """Both halves of this kind; the authorization server stops at the end."""
    preparation = Preparation(nsqd_flags=[], plan_fields={"compression": kind.compression})
    if kind.tls:
        _prepare_tls(preparation, folder, with_client_certificate=kind.client_certificate)
    if not kind.auth:
        yield preparation
        return
    publishing = entry(topic=TOPIC, permissions=["publish"])
    subscribing = entry(topic=TOPIC, channels=[CHANNEL], permissions=["subscribe"])
    with AuthServer(grant(publishing, subscribing)) as server:
        preparation.nsqd_flags.append(f"--auth-http-address={server.address}")
        preparation.plan_fields["auth_secret"] = SECRET
        yield preparation
        assert {question.params["secret"][0] for question in server.questions} == {SECRET}


def _prepare_tls(preparation: Preparation, folder: Path, *, with_client_certificate: bool) -> None:
    authority = Authority(folder, "authority")
    server = authority.issue("server")
    preparation.nsqd_flags += [
        ANY_HTTPS_PORT,  # with a certificate nsqd listens there too, by default on a fixed port
        f"--tls-cert={server.certificate_path}",
        f"--tls-key={server.key_path}",
        "--tls-required=tcp-https",  # /stats is asked for in the clear
    ]
    preparation.plan_fields["authority_path"] = str(authority.path)
    if with_client_certificate:
        client = authority.issue("client")
        preparation.nsqd_flags += [
            f"--tls-root-ca-file={authority.path}",
            "--tls-client-auth-policy=require-verify",
        ]
        preparation.plan_fields["certificate_path"] = str(client.certificate_path)
        preparation.plan_fields["key_path"] = str(client.key_path)
