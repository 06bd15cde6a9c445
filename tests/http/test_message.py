"""What handlers get and give."""

from __future__ import annotations

import pytest

from emberq.http.message import HttpError, Request, Response, empty, json, plain, text


def query_value(query: str, name: str = "name") -> str | None:
    return Request("GET", f"/path?{query}").query().get(name)


# Queries.


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("name=x", "x"),
        ("other=y&name=x", "x"),
        ("name=x&name=y", "x"),
        ("name=", ""),
        ("name", ""),
        ("name&x=1", ""),
        ("", None),
        ("&&", None),
        ("Name=x", None),
        ("name=a=b", "a=b"),
        ("name=a+b", "a b"),
        ("name=a%2Bb", "a+b"),
        ("name=t%23ephemeral", "t#ephemeral"),
        ("name=%3B%26", ";&"),
        ("n%61me=x", "x"),
        ("name=%C3%A9", "é"),
        ("name=%ff", "\ufffd"),
        ("name=what?", "what?"),
    ],
)
def test_a_parameter_has_its_first_value(query: str, value: str | None) -> None:
    assert query_value(query) == value


def test_without_a_question_mark_there_are_no_parameters() -> None:
    assert Request("GET", "/path").query().get("name") is None


@pytest.mark.parametrize("query", ["name=x;y=z", "x;name=y", ";", "name=%zz", "%=x", "name=%4", "ok=1&x=%", "x=%%41"])
def test_a_malformed_query_is_an_invalid_request_whatever_is_asked_for(query: str) -> None:
    with pytest.raises(HttpError) as refusal:
        query_value(query)
    assert (refusal.value.status, refusal.value.message) == (400, "INVALID_REQUEST")


def test_a_long_query_is_parsed_as_well() -> None:
    assert query_value("x=" + "y" * 1000 + "&name=z") == "z"


# Requests.


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/ping", "/ping"),
        ("/ping?x=/y", "/ping"),
        ("/p%69ng", "/ping"),
        ("/a%2Fb", "/a/b"),
        ("/a+b", "/a+b"),
        ("/%C3%A9", "/é"),
        ("http://host:4151/ping?x", "/ping"),
        ("http://host", "/"),
        ("*", "*"),
    ],
)
def test_the_path_is_unescaped(target: str, path: str) -> None:
    request = Request("GET", target)
    assert (request.path, request.target) == (path, target)


@pytest.mark.parametrize("target", ["/%", "/%4", "/%zz?x=1"])
def test_a_malformed_path_is_an_invalid_request(target: str) -> None:
    with pytest.raises(HttpError, match="INVALID_REQUEST"):
        Request("GET", target)


def test_headers_are_found_in_any_case() -> None:
    request = Request("GET", "/", headers={b"x-token": b"caf\xe9"})
    assert request.header("X-Token") == request.header("x-token") == "caf\xe9"
    assert request.header("X-Other") is None


# Responses.


def test_json_is_compact_and_safe_inside_html() -> None:
    answer = json({"b": [1, True, None], "a": "<&>\u2028\u2029é"})
    assert answer.body == '{"b":[1,true,null],"a":"\\u003c\\u0026\\u003e\\u2028\\u2029é"}'.encode()
    assert answer.content_type == "application/json; charset=utf-8"


def test_half_a_character_from_a_client_does_not_break_the_answer() -> None:
    assert json({"hostname": "\ud800"}).body == b'{"hostname":"?"}'
    assert text("\ud800").body == b"?"


def test_what_json_cannot_say_is_not_said() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        json({"value": float("nan")})


@pytest.mark.parametrize(
    ("response", "head"),
    [
        (
            text("OK"),
            b"HTTP/1.1 200 OK\r\nX-NSQ-Content-Type: nsq; version=1.0\r\n"
            b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\n",
        ),
        (empty(), b"HTTP/1.1 200 OK\r\nX-NSQ-Content-Type: nsq; version=1.0\r\nContent-Length: 0\r\n"),
        (
            plain(b"NOK", 500),
            b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n",
        ),
        (plain("x", content_type=None), b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"),
        (Response(204), b"HTTP/1.1 204 No Content\r\n"),
        (Response(299), b"HTTP/1.1 299 Status\r\nContent-Length: 0\r\n"),
        (
            Response(200, headers=(("X-Next", "7"),)),
            b"HTTP/1.1 200 OK\r\nX-Next: 7\r\nContent-Length: 0\r\n",
        ),
    ],
    ids=repr,
)
def test_a_response_knows_its_head(response: Response, head: bytes) -> None:
    assert response.head == head


def test_an_error_is_a_message_in_json() -> None:
    answer = HttpError(400, "MISSING_ARG_TOPIC").response()
    assert (answer.status, answer.body) == (400, b'{"message":"MISSING_ARG_TOPIC"}')
    assert ("X-NSQ-Content-Type", "nsq; version=1.0") in answer.headers


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "a\rb", "a\0b"])
def test_a_header_cannot_break_out_of_its_line(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        Response(301, headers=(("Location", value),))
    with pytest.raises(ValueError, match="line break"):
        plain("x", content_type=value)
