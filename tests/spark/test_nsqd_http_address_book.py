from __future__ import annotations

from pathlib import Path

import pytest

from emberq.embedded import EmbeddedThread
from emberq.nsqd.options import TlsRequired
from emberq.spark.error import NsqdUnavailableError
from emberq.spark.journal_offset import Place
from emberq.spark.nsqd_http import AddressBook
from emberq.spark.option import SinkSettings
from tests.support.certificates import Authority
from tests.support.waiting import wait_until


def book(**options: str) -> AddressBook:
    return AddressBook(SinkSettings.of(options).access)


def test_topics_are_found_through_nsqlookupd_and_on_nsqds_themselves() -> None:
    with EmbeddedThread(nsqd_count=2) as nsq:
        first, second = nsq.nsqd_http_addresses
        direct = book(nsqd=f"{first},{second}")
        for nsqd, topic in ((first, "clicks"), (second, "clicks"), (second, "clicks.eu"), (second, "other")):
            direct.peer(nsqd).post("/topic/create", {"topic": topic})
        clicks = sorted([Place(first, "clicks"), Place(second, "clicks")])
        matching = sorted([*clicks, Place(second, "clicks.eu")])
        assert direct.places(topics=("clicks",), pattern=None) == clicks
        assert direct.places(topics=(), pattern=r"clicks.*") == matching
        found = book(lookupd=f"127.0.0.1:1,{nsq.lookupd_http_addresses[0]}")
        wait_until(lambda: found.places(topics=(), pattern=r"clicks.*") == matching)
        assert found.places(topics=("clicks",), pattern=None) == clicks
        assert found.nsqds() == sorted([first, second])


def test_no_nsqlookupd_at_all_is_unavailability() -> None:
    with pytest.raises(NsqdUnavailableError, match=r"127\.0\.0\.1:1"):
        book(lookupd="127.0.0.1:1").nsqds()


def test_with_tls_the_address_for_https_is_asked_for_and_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "trusted")
    served_with = authority.issue("server").options()
    with EmbeddedThread(**served_with, tls_required=TlsRequired.YES) as nsq:
        found = book(lookupd=nsq.lookupd_http_addresses[0], tls="true", tlsCaFile=str(authority.path))
        wait_until(lambda: len(found.nsqds()) == 1)
        (nsqd,) = found.nsqds()
        assert nsqd != nsq.nsqd_http_addresses[0]
        assert found.peer(nsqd).get_json("/info")["tcp_port"] > 0
