"""What stands between a request and its handler, and between the answer and the browser.

Before: who is it, and may they? Pages send those who are not known to the login page; the API answers 401
LOGIN_REQUIRED. Refused actions go to the audit log.

After: headers that leave a browser no choice.

    Content-Security-Policy    only our own scripts and styles, none inside a page; nobody may put us in a frame
    X-Content-Type-Options     what we say is JSON is never taken for HTML
    Referrer-Policy            names of topics do not leave with a link
    Cross-Origin-*             no other site can read, embed or keep a handle on us
    Cache-Control: no-store    for figures and pages, unless the handler says otherwise
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.role import Permission
from emberq.admin.api.failure import as_http_error
from emberq.admin.audit import Deed
from emberq.admin.record import Recorder
from emberq.cluster.upstream import ClusterError
from emberq.http.message import Headers, HttpError, Request, Response
from emberq.http.router import Handler

VisitorHandler = Callable[[Request, Visitor], Response | Awaitable[Response]]

LOGIN_REQUIRED = HttpError(401, "LOGIN_REQUIRED")


def security_headers(*, image_origin: str = "") -> Headers:
    """For every answer. Pages may show pictures of `image_origin`, too."""
    images = f"img-src 'self' data: {image_origin}".rstrip()
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; {images}; font-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "same-origin"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
    )


class Protection:
    """Wraps handlers. Owned by the table of routes."""

    def __init__(self, gate: Gate, recorder: Recorder, *, base_path: str, headers: Headers) -> None:
        self._gate = gate
        self._recorder = recorder
        self._base_path = base_path
        self._headers = headers

    def open(self, handler: Handler) -> Handler:
        """For everybody."""
        return self._finished(handler)

    def page(self, handler: Handler) -> Handler:
        """For those who are logged in; the others are sent to do so."""

        async def handle(request: Request) -> Response:
            if await self._visitor(request) is None:
                return self._to_login(request)
            answer = handler(request)
            return answer if isinstance(answer, Response) else await answer

        def handle_now(request: Request) -> Response | Awaitable[Response]:
            # Nearly always it is known at once who asks, and then a page needs no task of its own.
            return handler(request) if self._gate.visitor(request) is not None else handle(request)

        return self._finished(handle_now)

    def reading(self, handler: Handler, permission: Permission | None = None) -> Handler:
        """For those who are logged in, and may look that closely."""

        async def handle(request: Request) -> Response:
            visitor = await self._known_visitor(request)
            if permission is not None:
                self._gate.check_role(visitor, permission)
            answer = handler(request)
            return answer if isinstance(answer, Response) else await answer

        return self._finished(handle)

    def changing(self, handler: VisitorHandler, *, action: str, permission: Permission) -> Handler:
        """For those who may do it, of their own will. What more a body asks for, the handler checks."""

        async def handle(request: Request) -> Response:
            visitor = await self._known_visitor(request)
            try:
                self._gate.check(request, visitor, permission)
            except HttpError as refusal:
                deed = Deed(action=action, detail=f"{request.method} {request.path}")
                await self._recorder.refuse(request, visitor, deed, refusal.message)
                raise
            answer = handler(request, visitor)
            return answer if isinstance(answer, Response) else await answer

        return self._finished(handle)

    def personal(self, handler: Callable[[Request, Visitor | None], Response | Awaitable[Response]]) -> Handler:
        """For everybody; the handler wants to know who it is."""

        async def handle(request: Request) -> Response:
            answer = handler(request, await self._visitor(request))
            return answer if isinstance(answer, Response) else await answer

        return self._finished(handle)

    async def _visitor(self, request: Request) -> Visitor | None:
        visitor = self._gate.visitor(request)
        if visitor is None and self._gate.shows_password(request):
            visitor = await self._gate.verify(request)
        return visitor

    async def _known_visitor(self, request: Request) -> Visitor:
        visitor = await self._visitor(request)
        if visitor is None:
            raise LOGIN_REQUIRED
        return visitor

    def _to_login(self, request: Request) -> Response:
        wanted = quote(request.target, safe="") if request.method == "GET" else ""
        return Response(303, headers=(("Location", f"{self._base_path}/login?next={wanted}"),))

    def _finished(self, handler: Handler) -> Handler:
        """The same with its failures told and its answer protected."""

        def handle(request: Request) -> Response | Awaitable[Response]:
            try:
                answer = handler(request)
            except HttpError as refusal:
                answer = refusal.response()
            return self._protected(answer) if isinstance(answer, Response) else self._later(answer)

        return handle

    async def _later(self, work: Awaitable[Response]) -> Response:
        try:
            answer = await work
        except HttpError as refusal:
            answer = refusal.response()
        except ClusterError as failure:
            answer = as_http_error(failure).response()
        return self._protected(answer)

    def _protected(self, answer: Response) -> Response:
        says_how_to_keep = any(name.lower() == "cache-control" for name, _ in answer.headers)
        caching: Headers = () if says_how_to_keep else (("Cache-Control", "no-store"),)
        return Response(
            answer.status,
            answer.body,
            content_type=answer.content_type,
            headers=(*answer.headers, *caching, *self._headers),
            file=answer.file,
        )
