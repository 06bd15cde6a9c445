"""--check-config: what a configuration comes to, port by port, before a daemon is started with it.

    $ nsqd --config=/etc/nsq/nsqd.cfg --check-config
    TCP 0.0.0.0:4150: publish and consume; for clients with a secret that the authorization servers know
    HTTP 0.0.0.0:4151: refuses everything, because TLS is required
    HTTPS 0.0.0.0:4152: the HTTP API; for every client
      OPEN: it asks for no credentials: --http-secret-file=FILE
    to nsqlookupd lookup.example:4160: register, by TLS
    1 door is open.

The lines are made from the options alone. By then the daemon has been made, so its files have been read and fit; it has
not listened, nor touched its data folder. The exit status is 0 if nothing is open.

What is a door:

    a port that asks for no credentials, or for some that every client can have
    a port, or a link to another daemon, on which secrets and messages can be read on their way
    a setting that weakens what others close

Connections within one machine need no encryption, so a loopback address or a Unix socket may be plain. They still need
credentials: other users of the machine can connect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from emberq.base.address import AddressError, UnixAddress, parse_address, parse_tcp_address, split_scheme
from emberq.base.text import masked
from emberq.base.tls import REQUIRE, REQUIRE_VERIFY, TlsOptions, TlsVersion

if TYPE_CHECKING:
    from emberq.admin.options import AdminOptions
    from emberq.lookupd.options import LookupdOptions
    from emberq.nsqd.options import NsqdOptions

SERVE_TLS = "--tls-cert=FILE --tls-key=FILE"
ASK_FOR_CERTIFICATES = f"--tls-client-auth-policy={REQUIRE_VERIFY} --tls-root-ca-file=FILE"
ASK_FOR_SECRETS = "--http-secret-file=FILE"


@dataclass(frozen=True, slots=True)
class Door:
    """Something that is open."""

    what: str
    remedy: str
    """The flags that close it."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a daemon listens on, or a link to another daemon."""

    name: str
    purpose: str
    users: str = ""
    """Which clients may use it; empty for a link."""
    doors: tuple[Door, ...] = ()

    @property
    def lines(self) -> Iterator[str]:
        """A line for the port, and one for each door."""
        yield f"{self.name}: {self.purpose}" + (f"; for {self.users}" if self.users else "")
        yield from (f"  OPEN: {door.what}: {door.remedy}" for door in self.doors)


@dataclass(frozen=True, slots=True)
class ExposureReport:
    """Everything that one daemon opens."""

    ports: tuple[Port, ...]

    @property
    def is_closed(self) -> bool:
        return not self._door_count

    @property
    def text(self) -> str:
        """What is printed."""
        count = self._door_count
        end = f"{count} door{'s are' if count > 1 else ' is'} open." if count else "All is closed."
        return "\n".join([*(line for port in self.ports for line in port.lines), end])

    @property
    def _door_count(self) -> int:
        return sum(len(port.doors) for port in self.ports)


# nsqd.


def nsqd_report(options: NsqdOptions) -> ExposureReport:
    """What an nsqd with these options opens."""
    return ExposureReport((*_nsqd_ports(options), *_nsqd_links(options), *_data_folder(options.data_path)))


def _nsqd_ports(options: NsqdOptions) -> Iterator[Port]:
    from emberq.nsqd.options import TlsRequired

    required = options.tls_required
    get_tls = "--tls-required=true" if options.tls_cert else f"{SERVE_TLS} --tls-required=true"
    keys = _certificate_key(options)
    if options.auth_http_address:
        keys = (*keys, "a secret that the authorization servers know")
    yield Port(
        f"TCP {options.tcp_address}",
        "publish and consume",
        _users(keys),
        (
            *_plain_door(options.tcp_address, is_encrypted=required is not TlsRequired.NO, remedy=get_tls),
            *_keyless_door(keys, f"{ASK_FOR_CERTIFICATES}, or --auth-http-address=https://HOST:PORT/auth"),
            *_certificate_doors(options),
        ),
    )
    if options.http_address and required is TlsRequired.YES:
        yield Port(f"HTTP {options.http_address}", "refuses everything, because TLS is required")
    elif options.http_address:
        yield Port(
            f"HTTP {options.http_address}",
            "the HTTP API",
            _users(_secret_key(options.http_secret_file)),
            (
                *_plain_door(
                    options.http_address, is_encrypted=False, remedy=f"{get_tls}, or an empty --http-address="
                ),
                *_keyless_door(_secret_key(options.http_secret_file), ASK_FOR_SECRETS),
            ),
        )
    if options.https_address and options.tls_cert:
        keys = (*_certificate_key(options), *_secret_key(options.http_secret_file))
        remedy = f"{ASK_FOR_SECRETS}, or {ASK_FOR_CERTIFICATES}"
        yield Port(f"HTTPS {options.https_address}", "the HTTP API", _users(keys), _keyless_door(keys, remedy))


def _nsqd_links(options: NsqdOptions) -> Iterator[Port]:
    for address in options.lookupd_tcp_address:
        doors = _plain_door(address, is_encrypted=options.lookupd_tls, remedy="--lookupd-tls")
        yield Port(
            f"to nsqlookupd {address}",
            "register, " + ("by TLS" if options.lookupd_tls else "by plain TCP"),
            doors=(*doors, *_not_an_address(address, "--lookupd-tcp-address")),
        )
    for url in options.auth_http_address:
        yield Port(
            f"to authorization server {masked(url)}",
            "show the secrets of clients",
            doors=_plain_url_door(url, "--auth-http-address=https://HOST:PORT/auth"),
        )


def _data_folder(path: str) -> Iterator[Port]:
    """A start would fail without a folder to write to. It is only looked at."""
    if not os.access(path or ".", os.R_OK | os.W_OK | os.X_OK):
        yield Port(
            f"data folder {path}", "keep messages", doors=(Door("nsqd cannot write there", "--data-path=FOLDER"),)
        )


# nsqlookupd.


def lookupd_report(options: LookupdOptions) -> ExposureReport:
    """What an nsqlookupd with these options opens."""
    has_tls = bool(options.tls_cert)
    keys = _certificate_key(options)
    http_keys = (*keys, *_secret_key(options.http_secret_file))
    return ExposureReport(
        (
            Port(
                f"TCP {options.tcp_address}",
                "register as an nsqd",
                _users(keys),
                (
                    *_plain_door(options.tcp_address, is_encrypted=has_tls, remedy=SERVE_TLS),
                    *_keyless_door(keys, ASK_FOR_CERTIFICATES),
                    *_certificate_doors(options),
                ),
            ),
            Port(
                f"{'HTTPS' if has_tls else 'HTTP'} {options.http_address}",
                "look up nsqds, and change the registry",
                _users(http_keys),
                (
                    *_plain_door(options.http_address, is_encrypted=has_tls, remedy=SERVE_TLS),
                    *_keyless_door(http_keys, f"{ASK_FOR_SECRETS}, or {ASK_FOR_CERTIFICATES}"),
                ),
            ),
        )
    )


# nsqadmin.


def admin_report(options: AdminOptions) -> ExposureReport:
    """What an nsqadmin with these options opens."""
    has_tls = bool(options.tls_cert)
    logins = _secret_key(options.http_secret_file)
    if options.user_file:
        logins = (*logins, f"a password of {options.user_file}")
    if options.trusted_proxy_cidr:
        logins = (*logins, f"a login at a proxy of {', '.join(options.trusted_proxy_cidr)}")
    keys = (*_certificate_key(options), *((" or ".join(logins),) if logins else ()))
    own = Port(
        f"{'HTTPS' if has_tls else 'HTTP'} {options.http_address}",
        "pages and API",
        _users(keys),
        (
            *_plain_door(options.http_address, is_encrypted=has_tls, remedy=SERVE_TLS),
            *_keyless_door(keys, f"--user-file=FILE, {ASK_FOR_SECRETS}, or --trusted-proxy-cidr=CIDR"),
            *_certificate_doors(options),
        ),
    )
    return ExposureReport((own, *_admin_links(options)))


def _admin_links(options: AdminOptions) -> Iterator[Port]:
    """To the daemons that are named. nsqds that nsqlookupds name are asked in the way that they ask for."""
    asked = [("nsqlookupd", "lookupd", each) for each in options.lookupd_http_address]
    asked += [("nsqd", "nsqd", each) for each in options.nsqd_http_address]
    for daemon, flag, address in asked:
        doors = _plain_url_door(address, f"--{flag}-http-address=https://HOST:PORT")
        if options.http_client_tls_insecure_skip_verify:
            unchecked = Door("any server passes for it", "no --http-client-tls-insecure-skip-verify")
            doors = (*doors, unchecked)
        yield Port(
            f"to {daemon} {masked(address)}",
            "ask and act",
            doors=(*doors, *_not_an_address(split_scheme(address)[1], f"--{flag}-http-address")),
        )
    if options.nsqd_secret_file and "*" in options.nsqd_secret_host:
        door = Door("each that registers is shown the secret for nsqds", "--nsqd-secret-host=HOST")
        yield Port("to nsqds that nsqlookupds name", "ask and act", doors=(door,))


# Keys: what a client has to show.


def _certificate_key(options: TlsOptions) -> tuple[str, ...]:
    if not options.tls_cert or options.tls_client_auth_policy != REQUIRE_VERIFY:
        return ()
    return (f"a certificate signed by {options.tls_root_ca_file or 'an authority that the system trusts'}",)


def _secret_key(path: str) -> tuple[str, ...]:
    return (f"a secret of {path}",) if path else ()


def _users(keys: tuple[str, ...]) -> str:
    return f"clients with {' and '.join(keys)}" if keys else "every client"


# Doors.


def _plain_door(address: str, *, is_encrypted: bool, remedy: str) -> tuple[Door, ...]:
    if is_encrypted or _is_within_this_machine(address):
        return ()
    return (Door("what travels there can be read and changed", remedy),)


def _plain_url_door(url: str, remedy: str) -> tuple[Door, ...]:
    scheme, rest = split_scheme(url)
    return _plain_door(rest.partition("/")[0].rpartition("@")[2], is_encrypted=scheme == "https", remedy=remedy)


def _keyless_door(keys: tuple[str, ...], remedy: str) -> tuple[Door, ...]:
    return () if keys else (Door("it asks for no credentials", remedy),)


def _certificate_doors(options: TlsOptions) -> Iterator[Door]:
    policy = options.tls_client_auth_policy
    if policy == REQUIRE:
        yield Door("any certificate will do, and every client can make one", ASK_FOR_CERTIFICATES)
    elif policy == REQUIRE_VERIFY and not options.tls_root_ca_file:
        yield Door("the system trusts authorities that sign certificates for everyone", "--tls-root-ca-file=FILE")
    elif policy and policy != REQUIRE_VERIFY:
        yield Door(f"{policy!r} is no policy, and no certificate is asked for", ASK_FOR_CERTIFICATES)
    if options.tls_min_version < TlsVersion.TLS_1_2:
        yield Door("old versions of TLS let weak keys and signatures pass", "no --tls-min-version")


def _not_an_address(address: str, flag: str) -> Iterator[Door]:
    try:
        parse_tcp_address(address)
    except AddressError as wrong:
        yield Door(str(wrong), f"{flag}=HOST:PORT")


def _is_within_this_machine(address: str) -> bool:
    try:
        where = parse_address(address)
    except AddressError:
        return False
    if isinstance(where, UnixAddress):
        return True
    if where.host == "localhost":
        return True
    try:
        return ip_address(where.host).is_loopback
    except ValueError:
        return False
