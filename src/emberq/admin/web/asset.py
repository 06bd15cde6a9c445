"""The files that pages need: scripts, styles, pictures.

Pages refer to them by a path that holds a digest of all of them together:

    /static/3f9a1c0d2b7e/app.js     kept by browsers for a year: under this name it never changes
    /static/app.js                  the same file, asked about anew each time

Scripts import each other by relative paths, so the digest in the path of the first is in those of all others, and a new
version of nsqadmin never meets an old script in a browser's cache. Both have a strong ETag. A folder given by
--dev-static-dir goes before the built-in files and is read anew for every request; then there is no digest.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from emberq.http.message import HttpError, Request, Response

BUILT_IN = Path(__file__).parent / "static"

_DIGEST_LENGTH = 12
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_ANEW = "no-cache"

_CONTENT_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/vnd.microsoft.icon",
    ".map": "application/json",
    ".woff": "application/font-woff",
    ".woff2": "application/font-woff2",
    ".ttf": "application/font-sfnt",
    ".eot": "application/vnd.ms-fontobject",
}
"""Types that the system's table may not know, or give otherwise."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, as it is sent."""

    body: bytes
    content_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> Asset:
        """Read it from a file; OSError."""
        body = path.read_bytes()
        digest = hashlib.sha256(body).hexdigest()[:_DIGEST_LENGTH]
        return cls(body, content_type_of(path.name), f'"{digest}"')


class Assets:
    """All files; read once, but for those of a folder that goes before them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._built_in = _read_all(BUILT_IN)
        self._digest = _digest_of(self._built_in)

    @property
    def names(self) -> tuple[str, ...]:
        """The built-in files, sorted."""
        return tuple(self._built_in)

    @property
    def prefix(self) -> str:
        """What the path of a file begins with, in pages."""
        return "/static" if self._folder is not None else f"/static/{self._digest}"

    def serve(self, request: Request) -> Response:
        """A file, asked for by its name alone."""
        return self._answer(request, _ASK_ANEW)

    def serve_digested(self, request: Request) -> Response:
        """A file, asked for by digest and name. After an upgrade a page may still ask for old ones: it gets the new."""
        is_current = request.params["digest"] == self._digest and self._folder is None
        return self._answer(request, _FOR_EVER if is_current else _ASK_ANEW)

    def _answer(self, request: Request, caching: str) -> Response:
        asset = self._find(request.params["asset"])
        headers = (("ETag", asset.etag), ("Cache-Control", caching))
        if asset.etag in [each.strip() for each in (request.header("If-None-Match") or "").split(",")]:
            return Response(304, headers=headers)
        return Response(200, asset.body, content_type=asset.content_type, headers=headers)

    def _find(self, name: str) -> Asset:
        replaced = self._replaced(name)
        asset = replaced if replaced is not None else self._built_in.get(name)
        if asset is None:
            raise HttpError(404, "NOT_FOUND")
        return asset

    def _replaced(self, name: str) -> Asset | None:
        """From the folder that goes before. A name is one segment of a path; dots must not lead out of the folder."""
        if self._folder is None or name in (".", "..") or "/" in name or "\0" in name:
            return None
        try:
            return Asset.read(self._folder / name)
        except OSError:
            return None


def content_type_of(name: str) -> str:
    """By the end of the name."""
    suffix = Path(name).suffix.lower()
    return _CONTENT_TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"


@cache
def _read_all(folder: Path) -> Mapping[str, Asset]:
    """Once for all nsqadmins of a process: an installed package does not change."""
    return MappingProxyType({path.name: Asset.read(path) for path in sorted(folder.iterdir()) if path.is_file()})


def _digest_of(assets: Mapping[str, Asset]) -> str:
    together = hashlib.sha256()
    for name, asset in assets.items():
        together.update(f"{name} {asset.etag}\n".encode())
    return together.hexdigest()[:_DIGEST_LENGTH]
