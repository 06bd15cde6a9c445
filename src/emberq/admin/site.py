"""What the pages may know of the server that serves them: the seam between the server and `admin.web`.

`page_routes(site)` of `admin.web.pages` gives the routes of the pages and of the files they need, written without the
base path: the server puts it in front of them, adds the headers that protect them, and sends visitors who have to log
in to `/login`. Only `/login` and what lies under `/static/` is shown to those.

    site.base_path             "" or "/nsq": what every link of a page begins with
    site.visit(request)        who asks, and what they may do; None if they have yet to log in
    site.browser_config(visit) what scripts in the browser have to know, fit for JSON
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from emberq.admin.access.role import Permission, Role
from emberq.http.message import Request


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
