"""HTTP requests and responses as handlers see them."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from trunkline.errors import InvalidParams, MisuseError
from trunkline.http import Request, Response


def test_query_is_decoded_and_last_value_counts() -> None:
    request = Request(method="GET", path="/", query_string="a=1&b=%C3%A4+x&a=2&c=")
    assert request.query == {"a": "2", "b": "ä x", "c": ""}
    assert request.query_items == [("a", "1"), ("b", "ä x"), ("a", "2"), ("c", "")]


def test_body_is_read_as_json_and_text() -> None:
    request = Request(method="POST", path="/", body=b'{"a": [1]}')
    assert request.json() == {"a": [1]}
    assert request.text() == '{"a": [1]}'


def test_body_that_cannot_be_read_is_an_error_of_the_caller() -> None:
    request = Request(method="POST", path="/", body=b"\xff{")
    with pytest.raises(InvalidParams, match="not valid JSON"):
        request.json()
    with pytest.raises(InvalidParams, match="not UTF-8"):
        request.text()


def test_reprs_hide_headers_and_bodies() -> None:
    request = Request(method="GET", path="/a", headers={"authorization": "secret"}, body=b"secret")
    assert repr(request) == "<Request: GET /a>"
    assert repr(Response("secret", status=201)) == "<Response: 201, 6 bytes>"


@pytest.mark.parametrize(
    ("response", "kind", "body"),
    [
        (Response("ä"), "text/plain; charset=utf-8", "ä".encode()),
        (Response(b"x"), "application/octet-stream", b"x"),
        (Response(b"x", headers={"Content-Type": "image/png"}), "image/png", b"x"),
        (Response.text("x"), "text/plain; charset=utf-8", b"x"),
        (Response.html("<p>"), "text/html; charset=utf-8", b"<p>"),
        (Response.json([1]), "application/json", b"[1]"),
        (Response.json([1], headers={"Content-Type": "application/problem+json"}), "application/problem+json", b"[1]"),
    ],
)
def test_content_type_follows_from_the_body(response: Response, kind: str, body: bytes) -> None:
    assert (response.headers, response.body, response.status) == ([("content-type", kind)], body, 200)


def test_response_without_body_has_no_content_type() -> None:
    assert Response(status=204).headers == []


def test_json_takes_dataclasses_and_models() -> None:
    @dataclass
    class Point:
        x: int

    class Place(BaseModel):
        name: str

    assert Response.json({"at": Point(1), "in": Place(name="a")}).body == b'{"at":{"x":1},"in":{"name":"a"}}'


def test_headers_can_be_repeated() -> None:
    cookies = Response(headers=[("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    assert cookies.headers == [("set-cookie", "a=1"), ("set-cookie", "b=2")]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"status": 99}, "HTTP status from 200 up, not 99"),
        ({"status": 101}, "from 200 up"),
        ({"status": "200"}, "from 200 up, not '200'"),
        ({"status": True}, "from 200 up"),
        ({"body": 5}, "bytes or a text, not 5"),
        ({"body": "x", "status": 204}, "status 204 has no body"),
        ({"headers": {"a b": "c"}}, "not the name of a header"),
        ({"headers": {"a": "b\r\nc: d"}}, "HTTP does not allow"),
        ({"headers": {"a": "→"}}, "HTTP does not allow"),
        ({"headers": {"a": 5}}, "a pair of texts"),
        ({"headers": {"Content-Length": "5"}}, "sets the header content-length itself"),
    ],
)
def test_invalid_response_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        Response(**options)
