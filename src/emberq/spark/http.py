"""Talking HTTP to nsqd and nsqlookupd from code that blocks, as Spark's workers do.

- A connection is kept open. If the server closed it meanwhile, a GET is put again on a new one, once. A POST is not:
  it may have been carried out. Whoever may repeat it decides that (`patiently`, and the sink with its numbers).
- No answer in time, no connection, half an answer, a 5xx: `NsqdUnavailable`. Any other status but 200: `NsqdRefused`.
- A request can be sent and its answer be fetched later, so that several are under way on as many connections.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from emberq.base.address import parse_tcp_address
from emberq.base.printable import one_line
from emberq.spark.error import NsqdRefused, NsqdUnavailable, OptionError
from emberq.spark.setting import Access

MAX_ERROR_CHARS = 200
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0

_REMEDIES = {
    "UNAUTHORIZED": 'option "authSecret" is missing or wrong',
    "FORBIDDEN": 'the secret in option "authSecret" does not allow this',
    "TLS_REQUIRED": 'set option "tls" to true and give the HTTPS address',
    "BODY_TOO_BIG": 'set option "maxBodyBytes" to no more than the --max-body-size of nsqd',
    "MSG_TOO_BIG": "a body is larger than the --max-msg-size of nsqd",
}

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Answer(NamedTuple):
    """The body of a 200, and the headers with it."""

    body: bytes
    headers: Mapping[str, str]


class HttpPeer:
    """One connection to the HTTP API of an nsqd or nsqlookupd. Owned by one thread; opened at the first use."""

    def __init__(self, address: str, access: Access) -> None:
        scheme, _, host_and_port = address.rpartition("://")
        self.address = host_and_port
        """As it is shown, and as it stands in offsets."""
        self._access = access
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
        """It opens again when it is used again."""
        self._connection.close()

    def get(self, path: str, **query: str | int) -> Answer:
        """The answer to a GET."""
        was_open = self._connection.sock is not None
        try:
            return self._ask("GET", path, query)
        except NsqdUnavailable as failure:
            # Only a connection that lay idle is expected to be gone; a server that takes too long is not asked again.
            if not was_open or isinstance(failure.__cause__, TimeoutError):
                raise
            return self._ask("GET", path, query)

    def get_json(self, path: str, **query: str | int) -> Any:
        """The same where the answer must be JSON."""
        answer = self.get(path, **query)
        try:
            return json.loads(answer.body)
        except ValueError as error:
            raise NsqdUnavailable(self.address, f"the answer to {path} is not JSON") from error

    def post(self, path: str, query: Mapping[str, str | int]) -> Answer:
        """The answer to a POST without a body."""
        return self._ask("POST", path, query)

    def _ask(self, method: str, path: str, query: Mapping[str, str | int]) -> Answer:
        self.send(method, path, query=query, body=None, headers={})
        return self.receive()

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int],
        body: Iterable[bytes | memoryview] | None,
        headers: Mapping[str, str],
    ) -> None:
        """Send a request; `receive` fetches its answer."""
        if self._access.auth_secret is not None:
            headers = {**headers, "Authorization": f"Bearer {self._access.auth_secret}"}
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            self._connection.request(method, target, body=body, headers=dict(headers))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NsqdUnavailable(self.address, self._reason(error)) from error

    def receive(self) -> Answer:
        """The answer to the request sent last."""
        try:
            response = self._connection.getresponse()
            body = response.read()
        except http.client.BadStatusLine as error:
            self.close()
            raise self._not_http(error) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NsqdUnavailable(self.address, self._reason(error)) from error
        if response.status == HTTPStatus.OK:
            return Answer(body, dict(response.headers.items()))
        raise self._refusal(response.status, body)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._access.request_timeout_s:g} s"
        return str(error) or type(error).__name__

    def _not_http(self, error: http.client.BadStatusLine) -> Exception:
        if "E_BAD" in str(error):  # nsqd's way to refuse what is not its protocol
            return OptionError(f"{self.address} is where nsqd speaks TCP; give its address for HTTP, as host:4151")
        return NsqdUnavailable(self.address, self._reason(error))

    def _refusal(self, status: int, body: bytes) -> Exception:
        facts = _facts(body)
        code = one_line(str(facts.pop("message", body[:MAX_ERROR_CHARS].decode("utf-8", "backslashreplace"))))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return NsqdUnavailable(self.address, f"{status} {code}")
        return NsqdRefused(self.address, status=status, code=code, remedy=_REMEDIES.get(code, ""), facts=facts)


def _facts(body: bytes) -> dict[str, Any]:
    """What an error of NSQ says: its name as `message`, and sometimes more."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def patiently(action: Callable[[], _T], *, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> _T:
    """What `action` returns, tried again while it raises `NsqdUnavailable` and `timeout_s` has not passed."""
    deadline_s = time.monotonic() + timeout_s
    delay_s = FIRST_DELAY_S
    while True:
        try:
            return action()
        except NsqdUnavailable as failure:
            if time.monotonic() + delay_s > deadline_s:
                raise
            _log.warning("%s; trying again in %.1f s", failure, delay_s)
        sleep(delay_s)
        delay_s = min(delay_s * 2, MAX_DELAY_S)
