"""nsqd's link to nsqlookupds that speak TLS."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from emberq.base.program import StartError
from emberq.base.settings import OptionsError
from emberq.nsqd.options import NsqdOptions
from tests.conftest import StartNsqd
from tests.support.certificates import Authority
from tests.support.harness import NsqdHarness
from tests.support.lookupd_harness import LookupdHarness
from tests.support.waiting import wait_until

StartLookupd = Callable[..., LookupdHarness]


@pytest.fixture
def start_lookupd(authority: Authority) -> Iterator[StartLookupd]:
    """Starts an nsqlookupd with a certificate, unless told otherwise."""
    with ExitStack() as running:

        def start(*, asks_for_certificates: bool = False, **options: Any) -> LookupdHarness:
            defaults = authority.issue("lookupd").options() | {"broadcast_address": "127.0.0.1"}
            if asks_for_certificates:
                defaults |= {"tls_client_auth_policy": "require-verify", "tls_root_ca_file": str(authority.path)}
            return running.enter_context(LookupdHarness(**(defaults | options)))

        yield start


def address(lookupd: LookupdHarness) -> str:
    host, port = lookupd.daemon.tcp_address
    return f"{host}:{port}"


def is_registered(lookupd: LookupdHarness) -> bool:
    return lookupd.call(lambda: len(lookupd.daemon.registry.producers)) == 1


@pytest.fixture
def start(start_nsqd: StartNsqd, authority: Authority) -> Callable[..., NsqdHarness]:
    """Starts an nsqd that speaks TLS with an nsqlookupd, unless told otherwise."""

    def start(lookupd: LookupdHarness, **options: Any) -> NsqdHarness:
        defaults = {"lookupd_tls": True, "lookupd_tls_root_ca_file": str(authority.path)}
        return start_nsqd(lookupd_tcp_address=(address(lookupd),), **(defaults | options))

    return start


StartLinked = Callable[..., NsqdHarness]


def reason(caplog: pytest.LogCaptureFixture) -> str:
    """Why nsqd is not registered, as its log says."""
    mark = "not registered, will keep trying - "
    wait_until(lambda: mark in caplog.text)
    return next(text.partition(mark)[2] for text in caplog.messages if mark in text)


def test_nsqd_registers_and_asks_by_tls(start_lookupd: StartLookupd, start: StartLinked, authority: Authority) -> None:
    lookupd = start_lookupd(asks_for_certificates=True)
    lookupd.call(lambda: lookupd.daemon.registry.create_channel(topic="t", channel="from.elsewhere"))
    nsqd = start(lookupd, **authority.issue("nsqd").options())
    wait_until(lambda: is_registered(lookupd))
    nsqd.create_topic("t")
    wait_until(lambda: nsqd.has_channel("t", "from.elsewhere"))
    wait_until(lambda: lookupd.call(lambda: bool(lookupd.daemon.registry.producers_of("t"))))


def test_one_that_speaks_tls_only_is_told_from_one_that_is_down(
    start_lookupd: StartLookupd, start: StartLinked, caplog: pytest.LogCaptureFixture
) -> None:
    start(start_lookupd(), lookupd_tls=False, lookupd_tls_root_ca_file="")
    assert "--lookupd-tls" in reason(caplog)


def test_one_that_speaks_no_tls_is_not_registered_with(
    start_lookupd: StartLookupd, start: StartLinked, caplog: pytest.LogCaptureFixture
) -> None:
    lookupd = start_lookupd(tls_cert="", tls_key="")
    start(lookupd)
    expected = "cannot connect: it does not speak TLS; it needs --tls-cert, or this nsqd no --lookupd-tls"
    assert reason(caplog) == expected
    assert not is_registered(lookupd)


def test_one_with_another_name_is_not_registered_with(
    start_lookupd: StartLookupd, start: StartLinked, caplog: pytest.LogCaptureFixture
) -> None:
    lookupd = start_lookupd(tcp_address="127.0.0.2:0")
    start(lookupd)
    assert reason(caplog) == (
        "cannot connect: its certificate is not accepted: IP address mismatch, certificate is not valid for"
        " '127.0.0.2'. (--lookupd-tls-root-ca-file)"
    )
    assert not is_registered(lookupd)


def test_one_that_wants_a_certificate_says_so(
    start_lookupd: StartLookupd, start: StartLinked, caplog: pytest.LogCaptureFixture
) -> None:
    start(start_lookupd(asks_for_certificates=True))
    assert "certificate (--tls-cert, --tls-key)" in reason(caplog)


def test_an_authority_that_is_put_right_is_used_from_the_next_try_on(
    start_lookupd: StartLookupd,
    start: StartLinked,
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    trusted = tmp_path / "trusted.pem"
    shutil.copy(Authority(folder, "other").path, trusted)
    lookupd = start_lookupd()
    nsqd = start(lookupd, lookupd_tls_root_ca_file=str(trusted))
    assert "its certificate is not accepted: " in reason(caplog)
    trusted.write_text("nonsense")
    nsqd.call(nsqd.nsqd.reload)
    assert "LOOKUP: failed to build TLS config for nsqlookupd" in caplog.text
    shutil.copy(authority.path, trusted)
    nsqd.call(nsqd.nsqd.reload)
    nsqd.advance(ms=5_000)
    wait_until(lambda: is_registered(lookupd))


def test_files_that_cannot_be_used_stop_the_start(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(StartError, match=f"failed to build TLS config for nsqlookupd - {missing}: No such file"):
        start_nsqd(lookupd_tls=True, lookupd_tls_root_ca_file=missing)


def test_an_authority_without_tls_is_a_mistake() -> None:
    with pytest.raises(OptionsError, match="--lookupd-tls-root-ca-file has no effect without --lookupd-tls"):
        NsqdOptions(lookupd_tls_root_ca_file="ca.pem").validated()
