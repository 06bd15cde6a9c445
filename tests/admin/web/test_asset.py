"""The files that pages need, and how long browsers may keep them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emberq.admin.web.asset import BUILT_IN, Assets, content_type_of
from emberq.http.message import HttpError, Request, Response

IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["']\./([\w.]+)["']""")
FORBIDDEN = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser")


def asked_for(name: str, *, digest: str | None = None, known: str | None = None) -> Request:
    params = {"asset": name} if digest is None else {"asset": name, "digest": digest}
    return Request("GET", f"/static/{name}", headers={b"if-none-match": known.encode()} if known else {}, params=params)


def header(response: Response, name: str) -> str:
    return dict(response.headers)[name]


def test_a_file_is_served_with_its_type_and_a_strong_tag() -> None:
    answer = Assets().serve(asked_for("app.js"))
    assert answer.status == 200
    assert answer.body == (BUILT_IN / "app.js").read_bytes()
    assert answer.content_type == "text/javascript; charset=utf-8"
    assert re.fullmatch(r'"[0-9a-f]{12}"', header(answer, "ETag"))
    assert header(answer, "Cache-Control") == "no-cache"


def test_a_browser_that_has_the_file_is_told_so() -> None:
    assets = Assets()
    tag = header(assets.serve(asked_for("app.js")), "ETag")
    again = assets.serve(asked_for("app.js", known=f'"other", {tag}'))
    assert (again.status, again.body) == (304, b"")


def test_a_file_asked_for_by_the_digest_is_kept_for_a_year() -> None:
    assets = Assets()
    digest = assets.prefix.rpartition("/")[2]
    assert "immutable" in header(assets.serve_digested(asked_for("app.js", digest=digest)), "Cache-Control")


def test_a_file_asked_for_by_an_old_digest_is_not_kept() -> None:
    answer = Assets().serve_digested(asked_for("app.js", digest="000000000000"))
    assert (answer.status, header(answer, "Cache-Control")) == (200, "no-cache")


@pytest.mark.parametrize("name", ["nothing.js", "..", ".", "../asset.py", "\0"])
def test_what_is_no_file_is_not_found(name: str, tmp_path: Path) -> None:
    for assets in (Assets(), Assets(tmp_path)):
        with pytest.raises(HttpError, match="NOT_FOUND") as refusal:
            assets.serve(asked_for(name))
        assert refusal.value.status == 404


def test_files_of_a_folder_go_before_the_built_in_ones_and_are_read_anew(tmp_path: Path) -> None:
    assets = Assets(tmp_path)
    (tmp_path / "app.js").write_text("one")
    assert assets.serve(asked_for("app.js")).body == b"one"
    (tmp_path / "app.js").write_text("two")
    assert assets.serve(asked_for("app.js")).body == b"two"
    assert assets.serve(asked_for("dom.js")).body == (BUILT_IN / "dom.js").read_bytes()
    assert assets.prefix == "/static"


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a.map", "application/json"),
        ("a.svg", "image/svg+xml"),
        ("a.woff", "application/font-woff"),
        ("a.woff2", "application/font-woff2"),
        ("a.ttf", "application/font-sfnt"),
        ("a.eot", "application/vnd.ms-fontobject"),
        ("a.txt", "text/plain"),
        ("a", "application/octet-stream"),
    ],
)
def test_the_end_of_the_name_tells_the_type(name: str, content_type: str) -> None:
    assert content_type_of(name) == content_type


def scripts() -> list[Path]:
    return sorted(BUILT_IN.glob("*.js"))


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.name)
def test_scripts_import_only_files_that_are_there(script: Path) -> None:
    for imported in IMPORT.findall(script.read_text()):
        assert (BUILT_IN / imported).is_file(), imported


@pytest.mark.parametrize("script", scripts(), ids=lambda path: path.name)
def test_scripts_never_parse_html_or_code(script: Path) -> None:
    assert not FORBIDDEN.search(script.read_text())
