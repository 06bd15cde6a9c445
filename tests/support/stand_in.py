"""A server of pages without a cluster behind it: the real HTML and scripts, and documents that a test makes up.

For what a cluster cannot easily be brought to show: a warning, a failed pipeline, a name that no nsqd would take. What
pages do to a cluster is tested on a real one, in tests/browser.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import parse_qs

from emberq.admin.access.gate import Visitor
from emberq.admin.access.session import LoginSession
from emberq.admin.access.user import Role
from emberq.admin.web.pages import page_routes
from emberq.http.message import HttpError, Request, Response
from emberq.http.router import Match, Router
from tests.support.threaded_http import PatientServer

UNASKED = {
    "/api/absent": {"nodes": [], "message": ""},
    "/api/journal/": {"nodes": [], "message": ""},
    "/api/redrive/": {"moved": 0},
}
"""What pages fetch besides their document, by what the path begins with. Whether a test ends before that is chance."""
CONTENT_SECURITY_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"


class FixedSite:
    """A site whose visitors are all the same."""

    def __init__(
        self,
        *,
        role: Role = Role.ADMIN,
        user: str = "",
        base_path: str = "",
        has_passwords: bool = False,
        static_folder: Path | None = None,
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.base_path = base_path
        self.version = "1.3.0-emberq"
        self.has_passwords = has_passwords
        self.static_folder = static_folder
        self._config = config
        self._visitor = Visitor(user, role, LoginSession(user, "token", 0) if user else None)

    def visitor(self, request: Request) -> Visitor | None:
        return self._visitor

    def browser_config(self, visitor: Visitor | None) -> dict[str, Any]:
        assert visitor is not None
        return {
            "base_path": self.base_path,
            "csrf_token": "token",
            "permissions": sorted(visitor.role.permissions),
            "nsqlookupd": ["127.0.0.1:4161"],
            **self._config,
        }


class StandIn:
    """Serves the pages of a site, and documents by path (`/api/view?view=topics` as `topics`); a context manager."""

    def __init__(self, documents: Mapping[str, Any], site: FixedSite | None = None) -> None:
        self.documents = dict(documents)
        """What a test wants shown, by the view's name or the path."""
        self._router = Router(page_routes(site or FixedSite()))
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand_in.answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it is called with
                """Says nothing."""

        self._server = PatientServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.partition("?")
        view = parse_qs(query).get("view", [path])[0]
        if path == "/api/live":
            self._send(handler, Response(204))  # a stream that does not get through: the page polls
        elif view in self.documents:
            self._send_document(handler, self.documents[view])
        elif unasked := next(filter(path.startswith, UNASKED), None):
            self._send_document(handler, UNASKED[unasked])
        else:
            self._send(handler, self._page(handler.path))

    def _page(self, target: str) -> Response:
        request = Request("GET", target)
        found = self._router.find("GET", request.path)
        if not isinstance(found, Match):
            return found
        try:
            answer = found.route.handler(Request("GET", target, params=found.params))
        except HttpError as refusal:
            return refusal.response()
        assert isinstance(answer, Response)
        return answer

    def _send_document(self, handler: BaseHTTPRequestHandler, document: Any) -> None:
        self._send(handler, Response(200, json.dumps(document).encode(), content_type="application/json"))

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, response: Response) -> None:
        with contextlib.suppress(ConnectionError):  # the browser has gone to another page
            handler.send_response(response.status)
            for name, value in response.headers:
                handler.send_header(name, value)
            if response.content_type:
                handler.send_header("Content-Type", response.content_type)
            handler.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
            handler.send_header("Content-Length", str(len(response.body)))
            handler.end_headers()
            handler.wfile.write(response.body)
