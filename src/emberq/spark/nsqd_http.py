"""Blocking HTTP to nsqd and nsqlookupd, for Spark's workers; and which nsqd has which topic.

**Access** (`Access`) is what the options say about reaching them: addresses, TLS, secrets and patience. It is pickled
into every task, so it holds paths and texts, no sockets.

**Requests** (`HttpPeer`)

- A connection is kept open. If the server closed it meanwhile, a GET is repeated once on a new connection. A POST is
  not: the server may have carried it out. Callers that may repeat it do so (`patiently`, and the sink with its names).
- No answer in time, no connection, half an answer, a 5xx: `NsqdUnavailableError`. Any other status but 200:
  `NsqdRefusedError`.
- A request can be sent and its answer received later, so that several are under way on as many connections.

**Addresses** (`AddressBook`)

- The nsqds are those that the option `nsqd` lists, or those that the nsqlookupds know. All nsqlookupds are asked,
  because each knows only the nsqds connected to it. One that does not answer is passed over if another does.
- An nsqd is known by the address of its HTTP API. nsqlookupd tells the one for plain HTTP. With `tls` that address is
  asked for the HTTPS port, which an nsqd with `--tls-required` tells.
"""

from __future__ import annotations

import http.client
import json
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

from emberq.base.address import TcpAddress, parse_tcp_address
from emberq.base.text import one_line
from emberq.base.tls import TlsFileError, client_context
from emberq.spark.error import NsqdRefusedError, NsqdUnavailableError, OptionError
from emberq.spark.journal_offset import Place

MAX_ERROR_CHARS = 200
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0

_REMEDIES = {
    "UNAUTHORIZED": 'option "{secret}" is missing or wrong',
    "FORBIDDEN": 'the secret in option "{secret}" does not allow this',
    "TLS_REQUIRED": 'set option "tls" to true and give the HTTPS address',
    "BODY_TOO_BIG": 'set option "maxBodyBytes" to no more than the --max-body-size of nsqd',
    "MSG_TOO_BIG": "a body is larger than the --max-msg-size of nsqd",
}

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


# Access.


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to reach nsqds and nsqlookupds."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_verify: bool
    auth_secret: str | None = field(repr=False)
    lookupd_secret: str | None = field(repr=False)
    request_timeout_s: float
    retry_timeout_s: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From the values of options. OptionError unless they name nsqds or nsqlookupds."""
        nsqds, lookupds = values["nsqd"] or (), values["lookupd"] or ()
        if bool(nsqds) == bool(lookupds):
            fault = "both are given" if nsqds else "neither is given"
            raise OptionError(
                f'either "nsqd" (HTTP addresses such as 127.0.0.1:4151) or "lookupd" (such as 127.0.0.1:4161): {fault}'
            )
        return cls(
            nsqds=nsqds,
            lookupds=lookupds,
            tls=values["tls"],
            tls_ca_file=values["tlsCaFile"],
            tls_cert_file=values["tlsCertFile"],
            tls_key_file=values["tlsKeyFile"],
            tls_verify=values["tlsVerify"],
            auth_secret=values["authSecret"],
            lookupd_secret=values["lookupdSecret"] or values["authSecret"],
            request_timeout_s=values["requestTimeout"],
            retry_timeout_s=values["retryTimeout"],
        )

    def tls_context(self) -> ssl.SSLContext:
        """A context that judges servers as the options say. OptionError if a file cannot be used."""
        try:
            return client_context(
                ca_file=self.tls_ca_file,
                cert_file=self.tls_cert_file,
                key_file=self.tls_key_file,
                verify=self.tls_verify,
            )
        except TlsFileError as error:
            raise OptionError(f'options "tlsCaFile", "tlsCertFile", "tlsKeyFile": {error}') from error


# Requests.


class NsqdAnswer(NamedTuple):
    """The body and headers of a 200."""

    body: bytes
    headers: Mapping[str, str]


class HttpPeer:
    """One connection to the HTTP API of an nsqd or nsqlookupd. Owned by one thread; opened at the first use."""

    def __init__(self, address: str, access: Access, *, is_lookupd: bool = False) -> None:
        scheme, _, host_and_port = address.rpartition("://")
        self.address = host_and_port
        """As messages and offsets name it."""
        self._access = access
        self._secret = access.lookupd_secret if is_lookupd else access.auth_secret
        self._secret_option = "lookupdSecret" if is_lookupd else "authSecret"
        target = parse_tcp_address(host_and_port)
        timeout_s = access.request_timeout_s
        self._connection: http.client.HTTPConnection
        if scheme == "https" or (access.tls and not scheme):
            self._connection = http.client.HTTPSConnection(
                target.host, target.port, timeout=timeout_s, context=access.tls_context()
            )
        else:
            self._connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)

    def close(self) -> None:
        """Close the connection. The next request opens another."""
        self._connection.close()

    def get(self, path: str, **query: str | int) -> NsqdAnswer:
        """The answer to a GET."""
        was_open = self._connection.sock is not None
        try:
            return self._ask("GET", path, query)
        except NsqdUnavailableError as failure:
            # Only an idle connection may have been closed meanwhile. A server that takes too long is not asked again.
            if not was_open or isinstance(failure.__cause__, TimeoutError):
                raise
            return self._ask("GET", path, query)

    def get_json(self, path: str, **query: str | int) -> Any:
        """The JSON in the answer to a GET; that in its `data`, where an NSQ before 1.0 answers."""
        answer = self.get(path, **query)
        try:
            document = json.loads(answer.body)
        except ValueError as error:
            raise NsqdUnavailableError(self.address, f"the answer to {path} is not JSON") from error
        return document.get("data", document) if isinstance(document, dict) else document

    def post(self, path: str, query: Mapping[str, str | int], body: bytes | None = None) -> NsqdAnswer:
        """The answer to a POST."""
        return self._ask("POST", path, query, body)

    def _ask(self, method: str, path: str, query: Mapping[str, str | int], body: bytes | None = None) -> NsqdAnswer:
        self.send(method, path, query=query, body=body, headers={})
        return self.receive()

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int],
        body: bytes | Iterable[bytes | memoryview] | None,
        headers: Mapping[str, str],
    ) -> None:
        """Send a request. `receive` returns its answer."""
        if self._secret is not None:
            headers = {**headers, "Authorization": f"Bearer {self._secret}"}
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            self._connection.request(method, target, body=body, headers=dict(headers))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NsqdUnavailableError(self.address, self._reason(error)) from error

    def receive(self) -> NsqdAnswer:
        """The answer to the request sent last."""
        try:
            response = self._connection.getresponse()
            body = response.read()
        except http.client.BadStatusLine as error:
            self.close()
            raise self._not_http(error) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NsqdUnavailableError(self.address, self._reason(error)) from error
        if response.status == HTTPStatus.OK:
            return NsqdAnswer(body, dict(response.headers.items()))
        raise self._refusal(response.status, body)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._access.request_timeout_s:g} s"
        return str(error) or type(error).__name__

    def _not_http(self, error: http.client.BadStatusLine) -> Exception:
        if "E_BAD" in str(error):  # how nsqd refuses another protocol on its TCP port
            return OptionError(f"{self.address} is where nsqd speaks TCP; give its address for HTTP, as host:4151")
        return NsqdUnavailableError(self.address, self._reason(error))

    def _refusal(self, status: int, body: bytes) -> Exception:
        facts = _facts(body)
        code = one_line(str(facts.pop("message", body[:MAX_ERROR_CHARS].decode("utf-8", "backslashreplace"))))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return NsqdUnavailableError(self.address, f"{status} {code}")
        remedy = _REMEDIES.get(code, "").format(secret=self._secret_option)
        return NsqdRefusedError(self.address, status=status, code=code, remedy=remedy, facts=facts)


def _facts(body: bytes) -> dict[str, Any]:
    """The JSON of an error answer: its name as `message`, and sometimes more."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def patiently(action: Callable[[], _T], *, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> _T:
    """The result of `action`, repeated while it raises `NsqdUnavailableError` and `timeout_s` has not passed."""
    deadline_s = time.monotonic() + timeout_s
    delay_s = FIRST_DELAY_S
    while True:
        try:
            return action()
        except NsqdUnavailableError as failure:
            if time.monotonic() + delay_s > deadline_s:
                raise
            _log.warning("%s; trying again in %.1f s", failure, delay_s)
        sleep(delay_s)
        delay_s = min(delay_s * 2, MAX_DELAY_S)


# Addresses.


class AddressBook:
    """Finds nsqds and keeps a connection to each. Owned by one reader or writer on the driver."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._peers: dict[str, HttpPeer] = {}
        """By address, with the scheme where it does not follow from the options."""
        self._https: dict[str, str] = {}
        """HTTPS addresses of nsqds, by HTTP address."""

    def peer(self, nsqd: str) -> HttpPeer:
        """The connection to an nsqd."""
        if nsqd not in self._peers:
            self._peers[nsqd] = HttpPeer(nsqd, self._access)
        return self._peers[nsqd]

    def _lookupd(self, address: str) -> HttpPeer:
        """The connection to an nsqlookupd."""
        url = address if "://" in address else f"http://{address}"
        if url not in self._peers:
            self._peers[url] = HttpPeer(url, self._access, is_lookupd=True)
        return self._peers[url]

    def close(self) -> None:
        """Close the connections."""
        for peer in self._peers.values():
            peer.close()

    def nsqds(self) -> list[str]:
        """All nsqds. NsqdUnavailableError if no nsqlookupd answers."""
        return list(self._access.nsqds) or sorted(self._nodes())

    def places(self, *, topics: tuple[str, ...], pattern: str | None) -> list[Place]:
        """Where topics with these names, or of this pattern, may be. NsqdUnavailableError if nothing answers."""
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
        failures: list[NsqdUnavailableError] = []
        for lookupd in self._access.lookupds:
            try:
                document = self._lookupd(lookupd).get_json("/nodes")
            except NsqdUnavailableError as failure:
                _log.warning("nsqlookupd %s", failure)
                failures.append(failure)
                continue
            for node in document["producers"]:
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
        except NsqdRefusedError as refusal:
            port = refusal.facts.get("https_port")
            if type(port) is int and port > 0:
                return str(TcpAddress(host, port))
        finally:
            probe.close()
        raise OptionError(
            f'nsqd {http_address} does not tell where it speaks HTTPS; list the HTTPS addresses in option "nsqd" '
            'instead of "lookupd"'
        )
