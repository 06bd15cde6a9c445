"""nsqadmin itself: POST /login and /logout, GET and PUT /config/<option>, rules and silences of alerts, the audit log.

    POST /login     {"user": "ada", "password": "…"}        200 {"message": ""} and a cookie
                                                            401 LOGIN_FAILED, 429 TOO_MANY_TRIES
    POST /logout                                            200 {"message": ""}, the cookie is taken back

A form (`application/x-www-form-urlencoded`: user, password, next) is taken as well, for browsers without scripts. It is
answered by sending the browser on: to `next`, which has to be a path of ours, or back to /login, with the reason as
`failed` (see the page) and `next` kept.

    GET /api/rules               {"rules": […], "version": "…", "is_built_in": false, "is_writable": true,
                                  "webhook": "host", "message": ""}
    PUT /api/rules               {"rules": […], "version": "…"}          all of them; 409 RULES_CHANGED if the file is
                                                            not of that version any more, or RULES_NOT_WRITABLE
    GET /api/rules/prometheus    the same as a rules file for Prometheus

A rule has the keys that it has in the file (see `rule`). Of the webhook only the host is told, and pages cannot change
it: nsqadmin would then send requests to wherever a user wants.

    POST /api/silences           {"rule", "topic", "channel", "node", "for", "reason"} begins a silence (see `silence`);
                                 it is answered with {"silence": {"id", …}, "message": ""}
    DELETE /api/silences/<id>    ends it before its time; 404 SILENCE_NOT_FOUND

GET /api/alerts tells of those that hold.

    GET /api/audit               {"lines": [line], "has_more": false, "has_file": true, "message": ""}
                                 lines of the audit log (see `audit`), the newest first, at most `count` (500) of those
                                 that fit `user`, `action`, `topic`, `channel` and `outcome`, in which * stands for any
                                 characters, and were written from `since` until before `until` (RFC 3339)

/config works as `http.live_config` says, for clients whose address --allow-config-from-cidr allows. Passwords in URLs
are not shown. As in the reference, being an admin is not needed, except where users have to log in: behind a proxy on
the same machine every request comes from an address that is allowed.
"""

from __future__ import annotations

import asyncio
import dataclasses
from ipaddress import ip_address
from urllib.parse import parse_qs, urlencode

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.user import Role
from emberq.admin.api.request import Body
from emberq.admin.audit import MAX_FOUND, ActionOutcome, Audit, AuditedAction, AuditFilter, Recorder, audit_time
from emberq.admin.live import Gatherer
from emberq.admin.options import SETTINGS, AdminOptions
from emberq.admin.rule import MAX_FILE_BYTES, Rule, RuleError, parse_rules, prometheus_rules
from emberq.admin.silence import Silence
from emberq.admin.webhook import host_of
from emberq.base.address import AddressError, parse_network, parse_tcp_address, split_scheme
from emberq.base.clock import Clock
from emberq.base.text import masked, parse_moment
from emberq.cluster.cluster import Cluster
from emberq.http.live_config import LiveConfig, Lookupds
from emberq.http.message import JSON, V1_HEADERS, HttpError, Query, Request, Response, encode_json, json, plain

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
    """Logs users in and out."""

    def __init__(self, gate: Gate, recorder: Recorder, *, base_path: str) -> None:
        self._gate = gate
        self._audit = recorder.audit
        self._base_path = base_path

    async def log_in(self, request: Request) -> Response:
        self._gate.check_source(request, None)
        is_form = (request.header("content-type") or "").partition(";")[0].strip().lower() == _FORM
        given = _read_form(request) if is_form else _read_json(Body(request))
        try:
            token, visitor = await self._gate.log_in(given.user, given.password, request)
        except HttpError as refusal:
            claimed = AuditedAction(action="log_in", detail=given.user)
            await self._audit.record(request, None, claimed, ActionOutcome.REFUSED, refusal.message)
            if is_form:
                return self._to_login_again(refusal, given)
            raise
        await self._audit.record(request, visitor, AuditedAction(action="log_in"), ActionOutcome.DONE)
        cookie = self._gate.cookie_header(token, request, path=self._base_path or "/")
        if is_form:
            return Response(303, headers=(("Location", self._safe(given.next_path)), cookie))
        return _done(cookie)

    async def log_out(self, request: Request, visitor: Visitor | None) -> Response:
        self._gate.check_source(request, visitor)
        self._gate.log_out(request)
        await self._audit.record(request, visitor, AuditedAction(action="log_out"), ActionOutcome.DONE)
        cookie = self._gate.cookie_header("", request, path=self._base_path or "/")
        return _done(cookie)

    def _to_login_again(self, refusal: HttpError, given: _Credentials) -> Response:
        failed = "too_often" if refusal.status == _TOO_MANY else "true"
        query = urlencode({"failed": failed, "next": self._safe(given.next_path)})
        return Response(303, headers=(("Location", f"{self._base_path}/login?{query}"),))

    def _safe(self, path: str) -> str:
        """The path, if it is one of ours: `//elsewhere` and `/\\elsewhere` lead to other sites."""
        is_ours = path.startswith(f"{self._base_path}/") and not path.startswith(("//", "/\\"))
        return path if is_ours and path.isprintable() and path.isascii() else f"{self._base_path}/"


def _read_json(body: Body) -> _Credentials:
    return _Credentials(body.text("user"), body.text("password"))


def _read_form(request: Request) -> _Credentials:
    try:
        fields = parse_qs(request.body.decode("ascii"), max_num_fields=_MAX_FIELDS)
    except ValueError as wrong:
        raise HttpError(400, "INVALID_BODY") from wrong
    user, password, next_path = (fields.get(name, [""])[0] for name in ("user", "password", "next"))
    return _Credentials(user, password, next_path)


def _done(cookie: tuple[str, str]) -> Response:
    return Response(200, encode_json({"message": ""}), content_type=JSON, headers=(*V1_HEADERS, cookie))


MAX_VALUE_BYTES = 1024 * 1024


class AdminConfigApi:
    """The settings of nsqadmin, behind the gate."""

    def __init__(self, options: AdminOptions, cluster: Cluster, gate: Gate) -> None:
        self._gate = gate
        cidr = options.allow_config_from_cidr
        self._network = parse_network(cidr) if cidr else None
        self._config = LiveConfig(
            SETTINGS,
            options,
            lookupds=Lookupds(
                key="nsqlookupd_http_addresses",
                read=lambda: cluster.lookupds,
                change=cluster.ask_other_lookupds,
                accepts=_is_address,
            ),
            shown_as={"graphite_url": masked, "notification_http_endpoint": masked, "alert_webhook_url": host_of},
        )

    def get(self, request: Request, visitor: Visitor | None) -> Response:
        self._check(request, visitor)
        return self._config.show(request.params["option"])

    def put(self, request: Request, visitor: Visitor | None) -> Response:
        self._check(request, visitor)
        self._gate.check_source(request, visitor)
        return self._config.change(request.params["option"], request.body)

    def _check(self, request: Request, visitor: Visitor | None) -> None:
        if self._network is not None:
            try:
                address = ip_address(self._gate.client_address(request))
            except ValueError as wrong:
                raise HttpError(400, "INVALID_REMOTE_ADDR") from wrong
            if address not in self._network:
                raise HttpError(403, "FORBIDDEN")
        if not self._gate.is_open and (visitor is None or visitor.role is not Role.ADMIN):
            raise HttpError(403, "FORBIDDEN")


def _is_address(text: str) -> bool:
    try:
        return bool(parse_tcp_address(split_scheme(text)[1]).host)
    except AddressError:
        return False


# The rules of alerts

MAX_RULES_BYTES = MAX_FILE_BYTES


class RulesApi:
    """Shows and changes the rules that say when something is wrong."""

    def __init__(self, gatherer: Gatherer, recorder: Recorder, *, webhook_url: str) -> None:
        """`webhook_url` is that of the flag, which goes before that of the file."""
        self._gatherer = gatherer
        self._rules = gatherer.alerts.rules
        self._recorder = recorder
        self._webhook_url = webhook_url

    def get(self, _request: Request) -> Response:
        current = self._rules.current
        return json(
            {
                "rules": [rule.document() for rule in current.rules],
                "version": current.version,
                "is_built_in": not current.version,
                "is_writable": self._rules.is_writable,
                "webhook": host_of(self._webhook_url or current.webhook),
                "message": "",
            }
        )

    def prometheus(self, _request: Request) -> Response:
        """YAML; as plain text, so that a browser shows it."""
        return plain(prometheus_rules(self._rules.current.rules))

    async def put(self, request: Request, visitor: Visitor) -> Response:
        body = Body(request)
        try:
            rules = parse_rules(body.objects("rules"))
        except RuleError as wrong:
            raise HttpError(400, f"INVALID_RULES: {wrong}") from wrong
        deed = AuditedAction(action="change_rules", detail=f"{len(rules)} rules")
        await self._recorder.carry_out(self._save(rules, body.text("version")), [deed], request, visitor)
        return self.get(request)

    async def _save(self, rules: tuple[Rule, ...], version: str) -> None:
        try:
            is_saved = await asyncio.to_thread(self._rules.save, rules, version)
        except OSError as failure:
            raise HttpError(409, f"RULES_NOT_WRITABLE: {failure.strerror or failure}") from failure
        if not is_saved:
            raise HttpError(409, "RULES_CHANGED")
        await self._gatherer.judge_again()


class SilencesApi:
    """Begins and ends silences."""

    def __init__(self, gatherer: Gatherer, recorder: Recorder, *, clock: Clock) -> None:
        self._gatherer = gatherer
        self._silences = gatherer.alerts.silences
        self._recorder = recorder
        self._clock = clock

    async def begin(self, request: Request, visitor: Visitor) -> Response:
        said = Body(request).members
        try:
            silence = Silence.parse(said, user=visitor.name, now_ns=self._clock.wall_ns())
        except RuleError as wrong:
            raise HttpError(400, f"INVALID_SILENCE: {wrong}") from wrong
        deed = AuditedAction(action="silence_alerts", detail=str(silence))
        await self._recorder.carry_out(self._begun(silence), [deed], request, visitor)
        return json({"silence": silence.document(), "message": ""})

    async def _begun(self, silence: Silence) -> None:
        try:
            self._silences.add(silence)
        except RuleError as full:
            raise HttpError(409, f"TOO_MANY_SILENCES: {full}") from full
        self._gatherer.apply_silences()

    async def end(self, request: Request, visitor: Visitor) -> Response:
        silence = self._silences.find(request.params["id"])
        if silence is None:
            raise HttpError(404, "SILENCE_NOT_FOUND")
        deed = AuditedAction(action="end_silence", detail=str(silence))
        await self._recorder.carry_out(self._ended(silence), [deed], request, visitor)
        return json({"message": ""})

    async def _ended(self, silence: Silence) -> None:
        self._silences.end(silence)
        self._gatherer.apply_silences()


# The audit log

DEFAULT_LINE_COUNT = 500
_MAX_COUNT_DIGITS = 4
_PATTERNS = ("user", "action", "topic", "channel", "outcome")


class AuditApi:
    """Shows what was done."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    async def get(self, request: Request) -> Response:
        query = request.query()
        patterns = {name: query.get(name) or "" for name in _PATTERNS}
        wanted = AuditFilter(**patterns, since=_time_in(query, "since"), until=_time_in(query, "until"))
        try:
            found = await self._audit.find(wanted, count=_line_count(query))
        except OSError as failure:
            raise HttpError(500, f"AUDIT_LOG_UNREADABLE: {failure.strerror or failure}") from failure
        kept = {"has_more": found.has_more, "has_file": self._audit.has_file}
        return json({"lines": found.lines, **kept, "message": ""})


def _time_in(query: Query, name: str) -> str:
    given = query.get(name)
    time_ns = parse_moment(given) if given else None
    if given and time_ns is None:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return "" if time_ns is None else audit_time(time_ns)


def _line_count(query: Query) -> int:
    given = query.get("count") or str(DEFAULT_LINE_COUNT)
    is_number = given.isascii() and given.isdigit() and len(given) <= _MAX_COUNT_DIGITS
    if not is_number or not 1 <= int(given) <= MAX_FOUND:
        raise HttpError(400, "INVALID_ARG_COUNT")
    return int(given)
