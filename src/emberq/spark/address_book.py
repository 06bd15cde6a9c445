"""Which nsqds there are, and which of them have which topics.

The nsqds are those that the option `nsqd` lists, or those that the nsqlookupds know. nsqlookupds are asked all of them,
because each knows the nsqds that are connected to it; one that does not answer is passed over if another does.

An nsqd is known by the address of its HTTP API. nsqlookupd tells the one for plain HTTP; with `tls` the one for HTTPS
is asked for there, which an nsqd tells that has `--tls-required`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from emberq.base.address import TcpAddress
from emberq.spark.error import NsqdRefused, NsqdUnavailable, OptionError
from emberq.spark.http import HttpPeer
from emberq.spark.journal_offset import Place
from emberq.spark.setting import Access

_log = logging.getLogger(__name__)


class AddressBook:
    """Finds nsqds and keeps a connection to each. Owned by one reader or writer on the driver."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._peers: dict[str, HttpPeer] = {}
        """By the address that the rest of the package uses, that is with the scheme where it is not clear."""
        self._https: dict[str, str] = {}
        """The address for HTTPS of nsqds that we know by their address for HTTP."""

    def peer(self, nsqd: str) -> HttpPeer:
        """The connection to an nsqd."""
        if nsqd not in self._peers:
            self._peers[nsqd] = HttpPeer(nsqd, self._access)
        return self._peers[nsqd]

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers.values():
            peer.close()

    def nsqds(self) -> list[str]:
        """All of them. NsqdUnavailable if no nsqlookupd answers."""
        return list(self._access.nsqds) or sorted(self._nodes())

    def places(self, *, topics: tuple[str, ...], pattern: str | None) -> list[Place]:
        """Where topics with these names, or of this pattern, may be. NsqdUnavailable if that cannot be found out."""
        if self._access.lookupds:
            found = self._nodes()
        elif pattern is None:
            found = {nsqd: list(topics) for nsqd in self._access.nsqds}
        else:
            found = {nsqd: self._topics_on(nsqd) for nsqd in self._access.nsqds}
        matches = re.compile(pattern).fullmatch if pattern is not None else topics.__contains__
        return sorted(Place(nsqd, topic) for nsqd, names in found.items() for topic in names if matches(topic))

    def _topics_on(self, nsqd: str) -> list[str]:
        stats = self.peer(nsqd).get_json("/stats", format="json", include_clients="false", include_mem="false")
        return [topic["topic_name"] for topic in stats["topics"]]

    def _nodes(self) -> dict[str, list[str]]:
        """The nsqds that nsqlookupds know, with their topics."""
        nodes: dict[str, list[str]] = {}
        failures: list[NsqdUnavailable] = []
        for lookupd in self._access.lookupds:
            address = lookupd if "://" in lookupd else f"http://{lookupd}"
            try:
                document = self.peer(address).get_json("/nodes")
            except NsqdUnavailable as failure:
                _log.warning("nsqlookupd %s", failure)
                failures.append(failure)
                continue
            for node in document.get("data", document)["producers"]:
                nodes.setdefault(self._address_of(node), []).extend(node["topics"])
        if len(failures) == len(self._access.lookupds):
            raise failures[0]
        return nodes

    def _address_of(self, node: Mapping[str, Any]) -> str:
        address = str(TcpAddress(node["broadcast_address"], node["http_port"]))
        if not self._access.tls:
            return address
        if address not in self._https:
            self._https[address] = self._https_address(node["broadcast_address"], address)
        return self._https[address]

    def _https_address(self, host: str, http_address: str) -> str:
        probe = HttpPeer(f"http://{http_address}", replace(self._access, auth_secret=None))
        try:
            probe.get("/ping")
        except NsqdRefused as refusal:
            port = refusal.facts.get("https_port")
            if type(port) is int and port > 0:
                return str(TcpAddress(host, port))
        finally:
            probe.close()
        raise OptionError(
            f'nsqd {http_address} does not tell where it speaks HTTPS; list the HTTPS addresses in option "nsqd" '
            'instead of "lookupd"'
        )
