"""One shell and a table of pages; escaped HTML; Site.

The pages, as the server sends them: a frame, a title, and a place for the figures that scripts then fill.

    <html data-config="{…}">                          what scripts have to know (see `Site.browser_config`)
      <header>  name, links to the other pages, live or not, dark or light, who is logged in
      <main data-page="topic" data-topic="orders">    which script fills the page, and for what
        title, with places for its state and its buttons
        #banner   warnings and problems
        #content  the figures

There is no script and no style in the HTML itself, so a strict Content-Security-Policy holds. Names of topics and
channels come from the path of the request and are escaped by `html`.

HTML that is escaped unless it was made here.

    element("a", {"href": address}, name)   ->   <a href="…">…</a>

A child is markup, which stands as it is, or any other text, which is escaped; so are the values of attributes. Only
`element` makes markup, so what comes from outside cannot become any. An attribute that is None or False is left out,
one that is True has no value.

What the pages may know of the server that serves them: the seam between the server and `admin.web`.

`page_routes(site)` of `admin.web.pages` gives the routes of the pages and of the files they need, written without the
base path: the server puts it in front of them, adds the headers that protect them, and sends visitors who have to log
in to `/login`. Only `/login` and what lies under `/static/` is shown to those.

    site.base_path             "" or "/nsq": what every link of a page begins with
    site.visit(request)        who asks, and what they may do; None if they have yet to log in
    site.browser_config(visit) what scripts in the browser have to know, fit for JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from emberq.admin.access.user import Permission, Role
from emberq.admin.web.asset import Assets
from emberq.http.message import Request, Response
from emberq.http.router import Handler, Route

VOID_ELEMENTS: Final = frozenset({"img", "input", "link", "meta"})
"""Those of ours that have no end."""

DOCTYPE: Final = "<!doctype html>"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[str] | None
Attributes = Mapping[str, str | bool | None]


def element(tag: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """An element with its attributes and children; children that are None are left out."""
    opening = f"<{tag}{''.join(_attribute(name, value) for name, value in (attributes or {}).items())}>"
    if tag in VOID_ELEMENTS:
        if children:
            raise ValueError(f"<{tag}> cannot have children")
        return Markup(opening)
    return Markup(f"{opening}{''.join(map(_content, children))}</{tag}>")


def document(root: Markup) -> bytes:
    """A whole page, as it is sent."""
    return f"{DOCTYPE}\n{root}\n".encode("utf-8", "replace")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(value)}"'


def _content(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    return escape(child) if isinstance(child, str) else "".join(map(_content, child))


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Somebody who looks at a page."""

    user: str
    """Empty if nobody has to log in."""
    role: Role
    csrf_token: str
    """To be sent as `X-CSRF-Token` with every request that changes something; empty if there is no session."""
    can_log_out: bool
    """Whether there is a session to end."""

    @property
    def permissions(self) -> frozenset[Permission]:
        """What the buttons may offer."""
        return self.role.permissions


class Site(Protocol):
    """The server, as the pages see it."""

    @property
    def base_path(self) -> str:
        """Empty, or `/path` without a slash at the end."""
        ...

    @property
    def version(self) -> str:
        """The NSQ version it is compatible with."""
        ...

    @property
    def has_passwords(self) -> bool:
        """Whether `/login` takes a name and a password; otherwise a proxy has to say who asks."""
        ...

    @property
    def static_folder(self) -> Path | None:
        """A folder whose files go before the built-in ones (`--dev-static-dir`)."""
        ...

    def visit(self, request: Request) -> Visit | None:
        """Who asks; None if they have yet to log in."""
        ...

    def browser_config(self, visit: Visit | None) -> dict[str, Any]:
        """What scripts in the browser have to know.

        version, user_agent, base_path
        graph_enabled, graphite_url ("" when proxied: use <base_path>/render), statsd_interval (seconds),
        statsd_prefix, statsd_counter_format, statsd_gauge_format
        nsqlookupd (list of addresses), live_interval_ms, history_interval_ms, history_duration_ms (0: no history)
        user, role ("viewer", "operator", "admin"), is_admin, permissions (list of words, see `Permission`),
        csrf_token, can_log_out, has_passwords
        """
        ...


HTML = "text/html; charset=utf-8"
_NEVER_KEPT = (("Cache-Control", "no-store"),)
"""A page holds the token that allows its reader to act."""

NAVIGATION = (
    ("topics", "Topics"),
    ("nodes", "Nodes"),
    ("counter", "Counter"),
    ("lookup", "Lookup"),
    ("pipelines", "Pipelines"),
)
_PARTS_OF = {"topic": "topics", "channel": "topics", "node": "nodes"}
"""Pages below one that is in the navigation."""

_STILL_PAGES = frozenset({"login", "lookup"})
"""Pages whose figures do not renew themselves."""

_NOT_PRELOADED = "page_"
_STYLES = ("tokens.css", "layout.css", "control.css", "figure.css", "table.css", "message.css", "overlay.css")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one page differs in from the others."""

    name: str
    """As the script that fills it is called: `page_<name>.js`."""
    title: str
    about: Sequence[tuple[str, str]] = ()
    """What it shows, for the script: ("topic", "orders")."""
    breadcrumbs: Sequence[tuple[str, str]] = ()
    """The pages above it: path and title."""
    body: Child = None
    """What stands there before the script fills it; None: a sign that figures are on their way."""


def page_routes(site: Site) -> list[Route]:
    """Every page and every file that pages need, without the base path."""
    pages = Pages(site, Assets(site.static_folder))
    shown = {
        "/": pages.topics,
        "/topics": pages.topics,
        "/topics/{topic}": pages.topic,
        "/topics/{topic}/{channel}": pages.channel,
        "/nodes": pages.nodes,
        "/nodes/{node}": pages.node,
        "/counter": pages.counter,
        "/lookup": pages.lookup,
        "/pipelines": pages.pipelines,
        "/login": pages.login,
    }
    files: dict[str, Handler] = {
        "/static/{asset}": pages.assets.serve,
        "/static/{digest}/{asset}": pages.assets.serve_digested,
        "/fonts/{asset}": pages.assets.serve,
    }
    return [Route("GET", path, handler) for path, handler in (shown | files).items()]


class Pages:
    """Answers the requests for pages."""

    def __init__(self, site: Site, assets: Assets) -> None:
        self.assets = assets
        self._site = site

    def topics(self, request: Request) -> Response:
        return self._answer(request, Page(name="topics", title="Topics"))

    def topic(self, request: Request) -> Response:
        topic = request.params["topic"]
        page = Page(name="topic", title=topic, about=[("topic", topic)], breadcrumbs=[("topics", "Topics")])
        return self._answer(request, page)

    def channel(self, request: Request) -> Response:
        topic, channel = request.params["topic"], request.params["channel"]
        page = Page(
            name="channel",
            title=channel,
            about=[("topic", topic), ("channel", channel)],
            breadcrumbs=[("topics", "Topics"), (f"topics/{quote(topic, safe='')}", topic)],
        )
        return self._answer(request, page)

    def nodes(self, request: Request) -> Response:
        return self._answer(request, Page(name="nodes", title="Nodes"))

    def node(self, request: Request) -> Response:
        node = request.params["node"]
        page = Page(name="node", title=node, about=[("node", node)], breadcrumbs=[("nodes", "Nodes")])
        return self._answer(request, page)

    def counter(self, request: Request) -> Response:
        return self._answer(request, Page(name="counter", title="Counter"))

    def lookup(self, request: Request) -> Response:
        return self._answer(request, Page(name="lookup", title="Lookup"))

    def pipelines(self, request: Request) -> Response:
        return self._answer(request, Page(name="pipelines", title="Pipelines"))

    def login(self, request: Request) -> Response:
        body = self._login_form(request) if self._site.has_passwords else _NO_PASSWORDS
        return self._answer(request, Page(name="login", title="Log in", body=body))

    def _answer(self, request: Request, page: Page) -> Response:
        html = document(self._html(page, self._site.visit(request)))
        return Response(200, html, content_type=HTML, headers=_NEVER_KEPT)

    def _login_form(self, request: Request) -> Markup:
        """It also works without scripts: then the server sends the browser on to `next`."""
        query = request.query()
        problem = _LOGIN_PROBLEMS.get(query.get("failed") or "", "")
        return element(
            "form",
            {"id": "login", "class": "login", "method": "post", "action": self._path("login")},
            element("h1", None, "Log in"),
            element("input", {"type": "hidden", "name": "next", "value": query.get("next") or self._path("topics")}),
            _login_field("user", "Name", kind="text", autocomplete="username"),
            _login_field("password", "Password", kind="password", autocomplete="current-password"),
            element("p", {"id": "login-problem", "class": "problem", "role": "alert"}, problem),
            element("button", {"type": "submit", "class": "primary"}, "Log in"),
        )

    # The frame

    def _html(self, page: Page, visit: Visit | None) -> Markup:
        config = json.dumps(self._site.browser_config(visit), separators=(",", ":"))
        return element("html", {"lang": "en", "data-config": config}, self._head(page), self._body(page, visit))

    def _head(self, page: Page) -> Markup:
        icon = {"rel": "icon", "type": "image/svg+xml", "href": self._asset("ember.svg")}
        return element(
            "head",
            None,
            element("meta", {"charset": "utf-8"}),
            element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
            element("meta", {"name": "color-scheme", "content": "light dark"}),
            element("title", None, f"{page.title} · nsqadmin"),
            element("link", icon),
            [element("link", {"rel": "stylesheet", "href": self._asset(name)}) for name in _STYLES],
            element("script", {"src": self._asset("theme.js")}),
            [element("link", {"rel": "modulepreload", "href": self._asset(name)}) for name in self._modules(page)],
            element("script", {"type": "module", "src": self._asset("app.js")}),
        )

    def _modules(self, page: Page) -> list[str]:
        """All scripts that the page will import, so that they are fetched at once and not one after the other."""
        scripts = [name for name in self.assets.names if name.endswith(".js") and name not in ("theme.js", "app.js")]
        shared = [name for name in scripts if not name.startswith(_NOT_PRELOADED)]
        own = f"page_{page.name}.js"
        return [own, "api.js", "config.js"] if page.name == "login" else [own, *shared]

    def _asset(self, name: str) -> str:
        return f"{self._site.base_path}{self.assets.prefix}/{name}"

    def _path(self, path: str) -> str:
        return f"{self._site.base_path}/{path}"

    def _body(self, page: Page, visit: Visit | None) -> Markup:
        return element(
            "body",
            None,
            element("a", {"class": "skip-link", "href": "#main"}, "Skip to content"),
            self._top(page, visit),
            self._main(page),
            element("div", {"id": "notes", "class": "notes", "role": "status", "aria-live": "polite"}),
            element("footer", {"class": "foot"}, f"nsqadmin v{self._site.version}"),
        )

    def _top(self, page: Page, visit: Visit | None) -> Markup:
        is_login = page.name == "login"
        live_state = _LIVE_STATE if page.name not in _STILL_PAGES else None
        mark = element("img", {"src": self._asset("ember.svg"), "alt": "", "width": "24", "height": "24"})
        return element(
            "header",
            {"class": "top"},
            element("a", {"class": "brand", "href": self._path("topics")}, mark, "nsqadmin"),
            None if is_login else self._navigation(page),
            element("div", {"class": "top-end"}, live_state, _TOOLS, _user(visit)),
        )

    def _navigation(self, page: Page) -> Markup:
        current = _PARTS_OF.get(page.name, page.name)
        links = [
            element("a", {"href": self._path(path), "aria-current": "page" if path == current else None}, title)
            for path, title in NAVIGATION
        ]
        return element("nav", {"aria-label": "Pages"}, links)

    def _main(self, page: Page) -> Markup:
        about = {f"data-{name}": value for name, value in page.about}
        content: Child = page.body
        if content is None:
            content = element("p", {"id": "loading", "class": "loading"}, "Loading…")
        return element(
            "main",
            {"id": "main", "tabindex": "-1", "data-page": page.name, **about},
            None if page.name == "login" else self._title(page),
            element("div", {"id": "banner", "class": "banner", "role": "alert", "hidden": True}),
            None if page.name == "login" else _NEEDS_SCRIPTS,
            element("div", {"id": "content", "aria-busy": "true" if page.body is None else None}, content),
        )

    def _title(self, page: Page) -> Markup:
        crumbs = [
            element("li", None, element("a", {"href": self._path(path)}, title)) for path, title in page.breadcrumbs
        ]
        return element(
            "div",
            {"class": "title"},
            element("nav", {"class": "breadcrumbs", "aria-label": "Breadcrumbs"}, element("ol", None, crumbs))
            if crumbs
            else None,
            element("h1", None, page.title),
            element("span", {"id": "state", "class": "label", "data-kind": "warning", "hidden": True}),
            element("div", {"id": "title-buttons"}),
        )


_LIVE_STATE = element(
    "span",
    {"id": "live-state", "class": "live-state"},
    element("span", {"class": "dot"}),
    element("span", None, "Connecting…"),
)
_TOOLS = (
    element(
        "button",
        {"type": "button", "class": "quiet keys-button", "data-show-keys": True, "title": "Keyboard (?)"},
        element("kbd", None, "?"),
        element("span", {"class": "unseen"}, "Keyboard"),
    ),
    element(
        "button",
        {"type": "button", "class": "quiet", "data-toggle-theme": True, "title": "Dark or light (d)"},
        element("span", {"aria-hidden": "true"}, "◐"),
        element("span", {"class": "unseen"}, "Dark or light"),
    ),
)
_NEEDS_SCRIPTS = element(
    "noscript", None, element("p", {"class": "empty"}, "These pages need JavaScript; /api does not.")
)
_LOGIN_PROBLEMS = {
    "true": "Name or password is wrong.",
    "too_often": "Too many wrong passwords: wait a minute, then try again.",
}
"""By what /login says of a form that it refused."""
_NO_PASSWORDS = element("p", {"class": "empty"}, "Log in through the proxy in front of this nsqadmin.")


def _user(visit: Visit | None) -> Child:
    if visit is None or not visit.user:
        return None
    leave = element("button", {"type": "button", "class": "quiet", "data-log-out": True}, "Log out")
    return [element("span", {"class": "user"}, visit.user), leave if visit.can_log_out else Markup()]


def _login_field(name: str, label: str, *, kind: str, autocomplete: str) -> Markup:
    control = f"login-{name}"
    return element(
        "div",
        {"class": "field"},
        element("label", {"for": control}, label),
        element("input", {"id": control, "name": name, "type": kind, "autocomplete": autocomplete, "required": True}),
    )
