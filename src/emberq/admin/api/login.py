"""POST /login and POST /logout.

    POST /login     {"user": "ada", "password": "…"}        200 {"message": ""} and a cookie
                                                            401 LOGIN_FAILED, 429 TOO_MANY_TRIES
    POST /logout                                            200 {"message": ""}, the cookie is taken back

A form (`application/x-www-form-urlencoded`: user, password, next) is taken as well, for browsers without scripts. It is
answered by sending the browser on: to `next`, which has to be a path of ours, or back to /login, with the reason as
`failed` (see the page) and `next` kept.
"""

from __future__ import annotations

import dataclasses
from urllib.parse import parse_qs, urlencode

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.api.body import Body
from emberq.admin.audit import Deed, Outcome
from emberq.admin.record import Recorder
from emberq.http.message import Headers, HttpError, Request, Response, json

MAX_LOGIN_BYTES = 8 * 1024
_FORM = "application/x-www-form-urlencoded"
_MAX_FIELDS = 10
_TOO_MANY = 429


@dataclasses.dataclass(frozen=True, slots=True)
class _Credentials:
    user: str
    password: str = dataclasses.field(repr=False)
    next_path: str = ""


class LoginApi:
    """Lets people in and out."""

    def __init__(self, gate: Gate, recorder: Recorder, *, base_path: str) -> None:
        self._gate = gate
        self._audit = recorder.audit
        self._base_path = base_path

    async def log_in(self, request: Request) -> Response:
        self._gate.check_source(request, None)
        is_form = (request.header("content-type") or "").partition(";")[0].strip().lower() == _FORM
        given = _read_form(request) if is_form else _read_json(request)
        try:
            token, visitor = await self._gate.log_in(given.user, given.password, request)
        except HttpError as refusal:
            claimed = Deed(action="log_in", detail=given.user)
            await self._audit.record(request, None, claimed, Outcome.REFUSED, refusal.message)
            if is_form:
                return self._to_login_again(refusal, given)
            raise
        await self._audit.record(request, visitor, Deed(action="log_in"), Outcome.DONE)
        cookie = self._gate.cookie_header(token, request, path=self._base_path or "/")
        if is_form:
            return Response(303, headers=(("Location", self._safe(given.next_path)), cookie))
        return _with_headers(json({"message": ""}), (cookie,))

    async def log_out(self, request: Request, visitor: Visitor | None) -> Response:
        self._gate.check_source(request, visitor)
        self._gate.log_out(request)
        await self._audit.record(request, visitor, Deed(action="log_out"), Outcome.DONE)
        cookie = self._gate.cookie_header("", request, path=self._base_path or "/")
        return _with_headers(json({"message": ""}), (cookie,))

    def _to_login_again(self, refusal: HttpError, given: _Credentials) -> Response:
        failed = "too_often" if refusal.status == _TOO_MANY else "true"
        query = urlencode({"failed": failed, "next": self._safe(given.next_path)})
        return Response(303, headers=(("Location", f"{self._base_path}/login?{query}"),))

    def _safe(self, path: str) -> str:
        """The path, if it is one of ours: `//elsewhere` and `/\\elsewhere` lead to other sites."""
        is_ours = path.startswith(f"{self._base_path}/") and not path.startswith(("//", "/\\"))
        return path if is_ours and path.isprintable() and path.isascii() else f"{self._base_path}/"


def _read_json(request: Request) -> _Credentials:
    body = Body(request)
    return _Credentials(body.text("user"), body.text("password"))


def _read_form(request: Request) -> _Credentials:
    try:
        fields = parse_qs(request.body.decode("ascii"), max_num_fields=_MAX_FIELDS)
    except ValueError as wrong:
        raise HttpError(400, "INVALID_BODY") from wrong
    user, password, next_path = (fields.get(name, [""])[0] for name in ("user", "password", "next"))
    return _Credentials(user, password, next_path)


def _with_headers(response: Response, headers: Headers) -> Response:
    return Response(
        response.status,
        response.body,
        content_type=response.content_type,
        headers=(*response.headers, *headers),
    )
