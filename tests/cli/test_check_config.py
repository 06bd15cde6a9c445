"""--check-config: what is open, and the flag that closes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from emberq.admin.options import AdminOptions
from emberq.base.tls import TlsVersion
from emberq.cli import daemons
from emberq.cli.check_config import ExposureReport, admin_report, lookupd_report, nsqd_report
from emberq.lookupd.options import LookupdOptions
from emberq.nsqd.options import NsqdOptions, TlsRequired
from tests.support.certificates import Authority

PLAIN = "what travels there can be read and changed"
KEYLESS = "it asks for no credentials"
CERTIFICATES = "--tls-client-auth-policy=require-verify --tls-root-ca-file=FILE"

TLS: dict[str, Any] = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
VERIFIED: dict[str, Any] = TLS | {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": "ca.pem"}


def doors(report: ExposureReport) -> list[str]:
    """What is open, by the name of the port."""
    return [f"{port.name.split()[0]}: {door.what}: {door.remedy}" for port in report.ports for door in port.doors]


def nsqd(**options: Any) -> ExposureReport:
    return nsqd_report(NsqdOptions(**options).validated())


def lookupd(**options: Any) -> ExposureReport:
    return lookupd_report(LookupdOptions(**options).validated())


def admin(**options: Any) -> ExposureReport:
    defaults: dict[str, Any] = {"lookupd_http_address": ("https://lookup:4161",)}
    return admin_report(AdminOptions(**(defaults | options)).validated())


# nsqd.


def test_an_nsqd_is_open_as_it_comes() -> None:
    get_tls = "--tls-cert=FILE --tls-key=FILE --tls-required=true"
    assert doors(nsqd()) == [
        f"TCP: {PLAIN}: {get_tls}",
        f"TCP: {KEYLESS}: {CERTIFICATES}, or --auth-http-address=https://HOST:PORT/auth",
        f"HTTP: {PLAIN}: {get_tls}, or an empty --http-address=",
        f"HTTP: {KEYLESS}: --http-secret-file=FILE",
    ]


def test_a_closed_nsqd_says_who_may_use_it() -> None:
    report = nsqd(**VERIFIED, http_secret_file="secrets", lookupd_tcp_address=("lookup:4160",), lookupd_tls=True)
    assert report.is_closed
    assert report.text.splitlines() == [
        "TCP 0.0.0.0:4150: publish and consume; for clients with a certificate signed by ca.pem",
        "HTTP 0.0.0.0:4151: refuses everything, because TLS is required",
        "HTTPS 0.0.0.0:4152: the HTTP API; for clients with a certificate signed by ca.pem and a secret of secrets",
        "to nsqlookupd lookup:4160: register, by TLS",
        "All is closed.",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tls_required": TlsRequired.TCP_HTTPS}, f"HTTP: {PLAIN}: --tls-required=true, or an empty --http-address="),
        ({"tls_root_ca_file": ""}, "TCP: the system trusts authorities that sign certificates for everyone"),
        ({"tls_client_auth_policy": "require"}, "TCP: any certificate will do, and every client can make one"),
        ({"tls_client_auth_policy": "verify"}, "TCP: 'verify' is no policy, and no certificate is asked for"),
        ({"tls_min_version": TlsVersion.TLS_1_0}, "TCP: old versions of TLS let weak keys and signatures pass"),
        ({"lookupd_tcp_address": ("lookup:4160",)}, f"to: {PLAIN}: --lookupd-tls"),
        ({"lookupd_tcp_address": ("lookup",), "lookupd_tls": True}, 'to: "lookup" is not of the form host:port'),
        ({"auth_http_address": ("auth:80",)}, f"to: {PLAIN}: --auth-http-address=https://HOST:PORT/auth"),
        ({"data_path": "/nowhere"}, "data: nsqd cannot write there: --data-path=FOLDER"),
    ],
)
def test_each_thing_that_opens_an_nsqd_is_named(options: dict[str, Any], expected: str) -> None:
    report = nsqd(**(VERIFIED | {"http_secret_file": "secrets"} | options))
    assert any(door.startswith(expected) for door in doors(report)), doors(report)
    assert not report.is_closed


def test_links_within_the_machine_may_be_plain() -> None:
    links: dict[str, Any] = {"lookupd_tcp_address": ("127.0.0.1:4160", "localhost:4160", "[::1]:4160")}
    assert nsqd(**VERIFIED, **links).is_closed


def test_a_plain_port_of_one_machine_still_needs_credentials() -> None:
    local = {"tcp_address": "127.0.0.1:4150", "http_address": "/run/nsqd.sock"}
    found = doors(nsqd(**local))
    assert [door.partition(": ")[2].partition(": ")[0] for door in found] == [KEYLESS, KEYLESS]


def test_passwords_in_addresses_are_not_shown() -> None:
    report = nsqd(**VERIFIED, auth_http_address=("https://user:hunter2@auth.example/auth",))
    assert "hunter2" not in report.text
    assert report.is_closed


# nsqlookupd.


def test_an_nsqlookupd_is_open_as_it_comes() -> None:
    assert doors(lookupd()) == [
        f"TCP: {PLAIN}: --tls-cert=FILE --tls-key=FILE",
        f"TCP: {KEYLESS}: {CERTIFICATES}",
        f"HTTP: {PLAIN}: --tls-cert=FILE --tls-key=FILE",
        f"HTTP: {KEYLESS}: --http-secret-file=FILE, or {CERTIFICATES}",
    ]


def test_a_closed_nsqlookupd() -> None:
    assert lookupd(**VERIFIED).is_closed
    assert doors(lookupd(**TLS, http_secret_file="secrets")) == [f"TCP: {KEYLESS}: {CERTIFICATES}"]


# nsqadmin.


def test_an_nsqadmin_is_open_as_it_comes() -> None:
    remedy = "--user-file=FILE, --http-secret-file=FILE, or --trusted-proxy-cidr=CIDR"
    assert doors(admin(lookupd_http_address=("lookup:4161",))) == [
        f"HTTP: {PLAIN}: --tls-cert=FILE --tls-key=FILE",
        f"HTTP: {KEYLESS}: {remedy}",
        f"to: {PLAIN}: --lookupd-http-address=https://HOST:PORT",
    ]


@pytest.mark.parametrize(
    ("options", "users"),
    [
        ({"user_file": "users"}, "a password of users"),
        ({"http_secret_file": "secrets"}, "a secret of secrets"),
        ({"trusted_proxy_cidr": ("10.0.0.0/8",)}, "a login at a proxy of 10.0.0.0/8"),
        ({"user_file": "users", "http_secret_file": "secrets"}, "a secret of secrets or a password of users"),
    ],
)
def test_a_closed_nsqadmin_says_who_may_use_it(options: dict[str, Any], users: str) -> None:
    report = admin(**TLS, **options)
    assert report.is_closed
    assert f"pages and API; for clients with {users}" in report.text


def test_certificates_that_are_not_verified_are_a_door() -> None:
    report = admin(**VERIFIED, http_client_tls_insecure_skip_verify=True)
    assert doors(report) == ["to: any server passes for it: no --http-client-tls-insecure-skip-verify"]


def test_a_secret_for_every_nsqd_that_comes_is_a_door() -> None:
    report = admin(**VERIFIED, nsqd_secret_file="secret", nsqd_secret_host=("*",))
    assert doors(report) == ["to: each that registers is shown the secret for nsqds: --nsqd-secret-host=HOST"]


# The commands.


def files_of(authority: Authority, tmp_path: Path) -> list[str]:
    pair = authority.issue("server")
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    return [
        f"--tls-cert={pair.certificate_path}",
        f"--tls-key={pair.key_path}",
        f"--tls-root-ca-file={authority.path}",
        "--tls-client-auth-policy=require-verify",
        f"--http-secret-file={secret}",
    ]


@pytest.mark.usefixtures("process_as_before")
@pytest.mark.parametrize(
    ("program", "flags"),
    [
        (daemons.nsqd, ["--data-path=."]),
        (daemons.nsqlookupd, []),
        (daemons.nsqadmin, ["--lookupd-http-address=https://127.0.0.1:4161"]),
    ],
    ids=["nsqd", "nsqlookupd", "nsqadmin"],
)
def test_the_exit_status_says_whether_all_is_closed(
    program: Any, flags: Sequence[str], authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = [*flags, *files_of(authority, tmp_path), "--check-config"]
    assert program(closed) == 0
    assert capsys.readouterr().out.endswith("\nAll is closed.\n")
    assert program([*flags, "--check-config"]) == 1
    assert "  OPEN: " in capsys.readouterr().out
    assert program([*closed, f"--tls-key={authority.path}"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "failed to build TLS config" in printed.err


@pytest.mark.usefixtures("process_as_before")
def test_a_misspelled_key_is_not_closed(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text("tls_required = true\n")
    assert daemons.nsqlookupd([*files_of(authority, tmp_path), f"--config={config}", "--check-config"]) == 1
    assert "tls_required is not a setting of nsqlookupd" in capsys.readouterr().err


@pytest.mark.usefixtures("process_as_before")
def test_the_data_folder_is_not_touched(authority: Authority, tmp_path: Path, data_path: Path) -> None:
    assert daemons.nsqd([*files_of(authority, tmp_path), f"--data-path={data_path}", "--check-config"]) == 0
    assert list(data_path.iterdir()) == []
