"""How nsqadmin reaches the daemons."""

from __future__ import annotations

from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from emberq.admin.daemon import Nsqadmin
from emberq.admin.options import AdminOptions
from emberq.base.program import StartError
from emberq.embedded import EmbeddedThread
from emberq.nsqd.options import TlsRequired
from tests.support.admin_rig import AdminThread
from tests.support.certificates import Authority
from tests.support.cluster_rig import DEAD
from tests.support.lookupd_harness import LookupdHarness
from tests.support.raw_connection import RawConnection
from tests.support.tls_pair import client_context
from tests.support.waiting import PATIENCE_S


async def start(**options: Any) -> None:
    await Nsqadmin(AdminOptions(**({"http_address": "127.0.0.1:0"} | options))).start()


@pytest.mark.conformance(250)
def test_nsqds_that_want_certificates_are_asked_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    nsqd, own = authority.issue("nsqd"), authority.issue("nsqadmin")
    wants_certificates = {
        **nsqd.options(),
        "tls_root_ca_file": str(authority.path),
        "tls_client_auth_policy": "require-verify",
        "tls_required": TlsRequired.YES,
    }
    with EmbeddedThread(with_lookupd=False, **wants_certificates) as cluster:
        (node,) = cluster.nsqd_http_addresses
        trusting: dict[str, Any] = {
            "http_client_tls_root_ca_file": str(authority.path),
            "http_client_tls_cert": str(own.certificate_path),
            "http_client_tls_key": str(own.key_path),
        }
        with AdminThread(nsqd_http_address=(node,), **trusting) as admin:
            assert admin.get(f"/api/nodes/{node}").json()["node"] == node
        with AdminThread(nsqd_http_address=(node,)) as admin:
            assert admin.get(f"/api/nodes/{node}").status == 502


def test_an_nsqlookupd_that_wants_certificates_is_asked_by_https(authority: Authority) -> None:
    own = authority.issue("nsqadmin")
    closed = {
        **authority.issue("lookupd").options(),
        "tls_root_ca_file": str(authority.path),
        "tls_client_auth_policy": "require-verify",
    }
    trusting: dict[str, Any] = {
        "http_client_tls_root_ca_file": str(authority.path),
        "http_client_tls_cert": str(own.certificate_path),
        "http_client_tls_key": str(own.key_path),
    }
    with LookupdHarness(**closed) as lookupd:
        port = lookupd.daemon.http_address[1]
        lookupd.call(lambda: lookupd.daemon.registry.create_topic("t"))
        with AdminThread(lookupd_http_address=(f"https://127.0.0.1:{port}",), **trusting) as admin:
            assert admin.get("/api/topics").json() == {"topics": ["t"], "message": ""}
            changed = admin.put("/config/nsqlookupd_http_addresses", b'["https://localhost:1"]')
            assert (changed.status, changed.json()) == (200, ["https://localhost:1"])
            failed = admin.get("/api/topics")
            assert failed.status == 502
            assert "https://localhost:1/topics" in failed.text
        with AdminThread(lookupd_http_address=(f"127.0.0.1:{port}",), **trusting) as admin:
            assert admin.get("/api/topics").status == 502


def test_nsqadmin_serves_https_without_a_proxy(authority: Authority) -> None:
    pair = authority.issue("nsqadmin")
    with AdminThread(lookupd_http_address=(DEAD,), **pair.options()) as admin:

        def certificate() -> object:
            connection = HTTPSConnection(
                "localhost", admin.address[1], context=client_context(authority.path), timeout=PATIENCE_S
            )
            connection.request("GET", "/ping")
            assert connection.getresponse().read() == b"OK"
            shown = connection.sock.getpeercert()
            connection.close()
            assert shown is not None
            return shown["serialNumber"]

        before = certificate()
        authority.issue("nsqadmin")
        admin.call(admin.daemon.reload)
        assert certificate() != before
        plain = RawConnection(admin.address)
        plain.send(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"HTTP" not in plain.read_until_eof()
        plain.close()


async def test_a_name_that_nobody_knows_is_found_out_at_the_start() -> None:
    for option, flag in (("lookupd_http_address", "lookupd-http-address"), ("nsqd_http_address", "nsqd-http-address")):
        options: dict[str, Any] = {option: ("nobody.invalid:4161",)}
        with pytest.raises(StartError) as refusal:
            await start(**options)
        assert str(refusal.value).startswith(f"failed to resolve --{flag} (nobody.invalid:4161) - ")


async def test_files_that_cannot_be_used_are_found_out_at_the_start(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    missing = str(tmp_path / "missing")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"http_client_tls_root_ca_file": missing}, f"failed to read TLS root CA file {missing} - No such file"),
        ({"http_client_tls_root_ca_file": str(nonsense)}, f"failed to AppendCertsFromPEM {nonsense}"),
        (
            {"http_client_tls_cert": str(nonsense), "http_client_tls_key": str(nonsense)},
            f"failed to LoadX509KeyPair {nonsense}, {nonsense} - ",
        ),
        ({"tls_cert": missing, "tls_key": missing}, f"failed to build TLS config - open {missing}: No such file"),
        ({"nsqd_secret_file": missing}, f"--nsqd-secret-file: {missing}: No such file"),
        ({"lookupd_secret_file": missing}, f"--lookupd-secret-file: {missing}: No such file"),
        ({"http_secret_file": missing}, f"--http-secret-file: {missing}: No such file"),
        ({"user_file": missing}, f"failed to read --user-file ({missing}) - No such file"),
    ]
    for options, text in cases:
        with pytest.raises(StartError) as refusal:
            await start(lookupd_http_address=(DEAD,), **options)
        assert str(refusal.value).startswith(text)


async def test_what_cannot_be_listened_on_or_written_to_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"^listen \(192\.0\.2\.1:1\) failed - "):
        await start(lookupd_http_address=(DEAD,), http_address="192.0.2.1:1")
    path = tmp_path / "no" / "audit"
    with pytest.raises(StartError) as refusal:
        await start(lookupd_http_address=(DEAD,), audit_log_file=str(path))
    assert str(refusal.value) == f"failed to open --audit-log-file ({path}) - No such file or directory"
