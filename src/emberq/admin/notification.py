"""A POST for every action, to --notification-http-endpoint.

    {"action": "create_channel", "topic": "t", "channel": "c", "timestamp": 1715931000, "user": "joe",
     "remote_ip": "10.0.0.7:51324", "user_agent": "curl/8", "url": "http://host/api/topics", "via": "<our hostname>"}

`channel`, `node` and `user` are left out when empty. They are sent in the background, one at a time and in order;
nobody waits for them, and one that fails is logged and forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from emberq.admin.access.gate import Visitor, basic_user, is_secure
from emberq.admin.audit import Deed
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.http_query import HttpClient, HttpQueryError, public_url
from emberq.http.message import Request, encode_json

MAX_WAITING = 1000
"""Notifications for an endpoint that is slow; those beyond are dropped."""
STOP_SECONDS = 5.0
"""How long those that wait may take when nsqadmin stops."""

_log = logging.getLogger(__name__)


class Notifier:
    """Owned by the daemon."""

    def __init__(self, http: HttpClient, endpoint: str, *, clock: Clock) -> None:
        self._http = http
        self._endpoint = endpoint
        self._clock = clock
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._sender: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send from here on, if there is somebody to send to."""
        if self._endpoint:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def stop(self) -> None:
        """Send what waits, if that does not take long."""
        if self._sender is None:
            return
        try:
            await asyncio.wait_for(self._waiting.join(), STOP_SECONDS)
        except TimeoutError:
            _log.warning("%d notifications were not sent", self._waiting.qsize())
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)

    def notify(self, request: Request, visitor: Visitor, deed: Deed) -> None:
        """Tell of an action."""
        if self._sender is None:
            return
        try:
            self._waiting.put_nowait(self._message(request, visitor, deed))
        except asyncio.QueueFull:
            _log.error("notification of %s dropped: %d are waiting", deed.action, MAX_WAITING)

    def _message(self, request: Request, visitor: Visitor, deed: Deed) -> bytes:
        scheme = "https" if is_secure(request) else "http"
        named = {"topic": deed.topic}
        optional = {"channel": deed.channel, "node": deed.node}
        user = basic_user(request) or visitor.name
        return encode_json(
            {
                "action": deed.action,
                **named,
                **{key: value for key, value in optional.items() if value},
                "timestamp": self._clock.wall_ns() // NS_PER_SECOND,
                **({"user": user} if user else {}),
                "remote_ip": request.remote_address,
                "user_agent": request.header("user-agent") or "",
                "url": f"{scheme}://{request.header('host') or ''}{request.target}",
                "via": socket.gethostname(),
            }
        )

    async def _send_all(self) -> None:
        while True:
            message = await self._waiting.get()
            try:
                await self._http.post(self._endpoint, message, content_type="application/json")
            except HttpQueryError as failure:
                _log.error("notification to %s failed: %s", public_url(self._endpoint), failure)
            finally:
                self._waiting.task_done()
