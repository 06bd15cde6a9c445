"""The pages as the server sends them: one shell, and a table of what each page differs in.

    <html data-config="{…}">                          what scripts have to know (see `Site.browser_config`)
      <header>  name, links to the other pages, live or not, dark or light, who is logged in
      <main data-page="topic" data-topic="orders">    which script fills the page, and for what
        title, with places for its state and its buttons
        #banner   warnings and problems
        #absent   nodes that are silent or gone
        #content  the figures, which the script `page_<name>.js` fetches

**Safety.** There is no script and no style in the HTML itself, so a strict Content-Security-Policy holds. HTML is made
by `element` alone, which escapes every text and every value of an attribute; so a name of a topic, which comes from the
path of the request, cannot become markup.

**Seam.** `Site` is all that the pages know of the server. `page_routes(site)` gives the routes of the pages and of the
files they need, without the base path: the server puts it in front of them, adds the headers that protect a browser,
and sends visitors who have to log in to `/login`. Only `/login` and the files are shown to those.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from emberq.admin.access.gate import Visitor
from emberq.admin.access.user import Permission, Role
from emberq.admin.web.asset import Assets
from emberq.http.message import Request, Response
from emberq.http.router import Handler, Route

# HTML that is escaped unless it was made here

VOID_ELEMENTS: Final = frozenset({"img", "input", "link", "meta"})
"""The elements of ours that have no end tag."""

DOCTYPE: Final = "<!doctype html>"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[str] | None
Attributes = Mapping[str, str | bool | None]


def element(tag: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """An element: `element("a", {"href": address}, name)` is `<a href="…">…</a>`.

    A child that is `Markup` stands as it is, any other text is escaped, None is left out. An attribute that is None or
    False is left out; one that is True has no value.
    """
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


# The server behind the pages


class Site(Protocol):
    """The server, as the pages see it."""

    base_path: str
    """Empty, or `/path` without a slash at the end."""
    version: str
    """The NSQ version it is compatible with."""
    has_passwords: bool
    """Whether `/login` takes a name and a password; otherwise a proxy has to say who asks."""
    static_folder: Path | None
    """A folder whose files go before the built-in ones (`--dev-static-dir`)."""

    def visitor(self, request: Request) -> Visitor | None:
        """Who asks; None if they have yet to log in."""
        ...

    def browser_config(self, visitor: Visitor | None) -> dict[str, Any]:
        """What scripts in the browser have to know.

        version, user_agent, base_path
        graph_enabled, graphite_url ("" when proxied: use <base_path>/render), statsd_interval (seconds),
        statsd_prefix, statsd_counter_format, statsd_gauge_format
        nsqlookupd (list of addresses), live_interval_ms, history_interval_ms, history_duration_ms (0: no history),
        history_retention_ms (0: none on disk)
        time (seconds since the Unix epoch, when the page was made)
        user, role ("viewer", "operator", "admin"), is_admin, permissions (list of words, see `Permission`),
        csrf_token, can_log_out, has_passwords
        """
        ...


# The table of pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A row of the table: what one page differs in from the others."""

    name: str
    """As the script that fills it is called: `page_<name>.js`."""
    title: str = ""
    """Empty: the last name in its path, which is that of the topic, channel or node."""
    below: str = ""
    """The page of the navigation that it belongs to, if it is not there itself."""
    is_live: bool = True
    """Whether its figures renew themselves."""
    permission: Permission | None = None
    """What readers need to see anything on it; others have no link to it."""


_TOPICS = Page(name="topics", title="Topics")
_LOGIN = Page(name="login", title="Log in", is_live=False)
PAGES = {
    "/": _TOPICS,
    "/topics": _TOPICS,
    "/channels": Page(name="channels", title="Channels"),
    "/dead_letters": Page(name="dead_letters", title="Dead letters"),
    "/topics/{topic}": Page(name="topic", below="topics"),
    "/topics/{topic}/{channel}": Page(name="channel", below="topics"),
    "/nodes": Page(name="nodes", title="Nodes"),
    "/nodes/{node}": Page(name="node", below="nodes"),
    "/settings": Page(name="settings", title="Settings", below="nodes", is_live=False),
    "/counter": Page(name="counter", title="Counter"),
    "/lookup": Page(name="lookup", title="Lookup", is_live=False),
    "/pipelines": Page(name="pipelines", title="Pipelines"),
    "/alerts": Page(name="alerts", title="Alerts"),
    "/audit": Page(name="audit", title="Audit", is_live=False, permission=Permission.AUDIT),
    "/search": Page(name="search", title="Search", is_live=False),
    "/login": _LOGIN,
}
NAVIGATION = {page.name: page for page in PAGES.values() if not page.below and page is not _LOGIN}
"""By their paths, the pages that every page links to."""


def page_routes(site: Site) -> list[Route]:
    """Every page and every file that pages need, without the base path."""
    shell = Shell(site, Assets(site.static_folder))
    files: dict[str, Handler] = {
        "/static/{asset}": shell.assets.serve,
        "/static/{digest}/{asset}": shell.assets.serve_digested,
        "/fonts/{asset}": shell.assets.serve,
    }
    pages = {path: partial(shell.show, page) for path, page in PAGES.items()}
    return [Route("GET", path, handler) for path, handler in (pages | files).items()]


# The shell of every page

HTML = "text/html; charset=utf-8"
_NEVER_KEPT = (("Cache-Control", "no-store"),)
"""A page holds the token that allows its reader to act."""

_NOT_PRELOADED = "page_"
_STYLES = ("tokens.css", "layout.css", "control.css", "figure.css", "table.css", "message.css", "overlay.css")


class Shell:
    """Answers the requests for pages."""

    def __init__(self, site: Site, assets: Assets) -> None:
        self.assets = assets
        self._site = site

    def show(self, page: Page, request: Request) -> Response:
        """A page, for what the path of the request names."""
        visitor = self._site.visitor(request)
        config = json.dumps(self._site.browser_config(visitor), separators=(",", ":"))
        head, body = self._head(page, request), self._body(page, request, visitor)
        html = document(element("html", {"lang": "en", "data-config": config}, head, body))
        return Response(200, html, content_type=HTML, headers=_NEVER_KEPT)

    def _head(self, page: Page, request: Request) -> Markup:
        icon = {"rel": "icon", "type": "image/svg+xml", "href": self._asset("ember.svg")}
        return element(
            "head",
            None,
            element("meta", {"charset": "utf-8"}),
            element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
            element("meta", {"name": "color-scheme", "content": "light dark"}),
            element("title", None, f"{_title_of(page, request)} · nsqadmin"),
            element("link", icon),
            [element("link", {"rel": "stylesheet", "href": self._asset(name)}) for name in _STYLES],
            element("script", {"src": self._asset("theme.js")}),
            [element("link", {"rel": "modulepreload", "href": self._asset(name)}) for name in self._modules(page)],
            element("script", {"type": "module", "src": self._asset("app.js")}),
        )

    def _modules(self, page: Page) -> list[str]:
        """All scripts that the page will import: the browser then fetches them at once and not one after the other."""
        scripts = [name for name in self.assets.names if name.endswith(".js") and name not in ("theme.js", "app.js")]
        shared = [name for name in scripts if not name.startswith(_NOT_PRELOADED)]
        own = f"page_{page.name}.js"
        return [own, "api.js", "config.js"] if page is _LOGIN else [own, *shared]

    def _asset(self, name: str) -> str:
        return f"{self._site.base_path}{self.assets.prefix}/{name}"

    def _path(self, path: str) -> str:
        return f"{self._site.base_path}/{path}"

    def _body(self, page: Page, request: Request, visitor: Visitor | None) -> Markup:
        return element(
            "body",
            None,
            element("a", {"class": "skip-link", "href": "#main"}, "Skip to content"),
            self._top(page, request, visitor),
            self._main(page, request),
            element("div", {"id": "notes", "class": "notes", "role": "status", "aria-live": "polite"}),
            element("footer", {"class": "foot"}, f"nsqadmin v{self._site.version}"),
        )

    def _top(self, page: Page, request: Request, visitor: Visitor | None) -> Markup:
        mark = element("img", {"src": self._asset("ember.svg"), "alt": "", "width": "24", "height": "24"})
        return element(
            "header",
            {"class": "top"},
            element("a", {"class": "brand", "href": self._path("topics")}, mark, "nsqadmin"),
            None if page is _LOGIN else self._navigation(page, visitor),
            None if page is _LOGIN else self._search(request),
            element("div", {"class": "top-end"}, _LIVE_STATE if page.is_live else None, _TOOLS, _user(visitor)),
        )

    def _navigation(self, page: Page, visitor: Visitor | None) -> Markup:
        current = page.below or page.name
        permissions = visitor.role.permissions if visitor is not None else Role.VIEWER.permissions
        links = [
            element("a", {"href": self._path(path), "aria-current": "page" if path == current else None}, each.title)
            for path, each in NAVIGATION.items()
            if each.permission is None or each.permission in permissions
        ]
        return element("nav", {"aria-label": "Pages"}, links)

    def _search(self, request: Request) -> Markup:
        """The one search for all that has a name: a plain form, which leads to the page that shows what was found."""
        field = {
            "id": "find",
            "name": "q",
            "type": "text",
            "placeholder": "Find…",
            "aria-label": "Find by name",
            "autocomplete": "off",
            "spellcheck": "false",
            "value": (request.query().get("q") or "") if request.path.endswith("/search") else "",
        }
        form = {"class": "find", "role": "search", "method": "get", "action": self._path("search")}
        return element("form", form, element("input", field))

    def _main(self, page: Page, request: Request) -> Markup:
        about = {f"data-{name}": value for name, value in request.params.items()}
        if page is _LOGIN:
            content: Child = self._login_form(request) if self._site.has_passwords else _NO_PASSWORDS
        else:
            content = element("p", {"id": "loading", "class": "loading"}, "Loading…")
        return element(
            "main",
            {"id": "main", "tabindex": "-1", "data-page": page.name, **about},
            None if page is _LOGIN else self._title(page, request),
            element("div", {"id": "banner", "class": "banner", "role": "alert", "hidden": True}),
            None if page is _LOGIN else element("div", {"id": "absent", "class": "absent", "role": "status"}),
            None if page is _LOGIN else _NEEDS_SCRIPTS,
            element("div", {"id": "content", "aria-busy": None if page is _LOGIN else "true"}, content),
        )

    def _title(self, page: Page, request: Request) -> Markup:
        crumbs = [
            element("li", None, element("a", {"href": self._path(path)}, title))
            for path, title in _pages_above(page, request)
        ]
        return element(
            "div",
            {"class": "title"},
            element("nav", {"class": "breadcrumbs", "aria-label": "Breadcrumbs"}, element("ol", None, crumbs))
            if crumbs
            else None,
            element("h1", None, _title_of(page, request)),
            element("span", {"id": "state", "class": "label", "data-kind": "warning", "hidden": True}),
            element("div", {"id": "title-buttons"}),
        )

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


def _title_of(page: Page, request: Request) -> str:
    return page.title or list(request.params.values())[-1]


def _pages_above(page: Page, request: Request) -> Iterator[tuple[str, str]]:
    """Path and title of the pages that lead to this one, the outermost first."""
    if page.below:
        path = page.below
        yield path, NAVIGATION[page.below].title
        for name in list(request.params.values())[:-1]:
            path = f"{path}/{quote(name, safe='')}"
            yield path, name


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
_NO_PASSWORDS = (
    element("h1", None, "Log in"),
    element("p", {"class": "empty"}, "Log in through the proxy in front of this nsqadmin."),
)


def _user(visitor: Visitor | None) -> Child:
    if visitor is None or not visitor.name:
        return None
    leave = element("button", {"type": "button", "class": "quiet", "data-log-out": True}, "Log out")
    return [element("span", {"class": "user"}, visitor.name), leave if visitor.session is not None else Markup()]


def _login_field(name: str, label: str, *, kind: str, autocomplete: str) -> Markup:
    control = f"login-{name}"
    return element(
        "div",
        {"class": "field"},
        element("label", {"for": control}, label),
        element("input", {"id": control, "name": name, "type": kind, "autocomplete": autocomplete, "required": True}),
    )
