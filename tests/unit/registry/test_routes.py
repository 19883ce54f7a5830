"""Routes: paths, methods, precedence and reserved paths."""

from typing import Any

import pytest

from trunkline.errors import RegistrationError
from trunkline.registry.handlers import StartMode
from trunkline.registry.routes import RouteEntry, RouteTable, parse_methods, parse_path


def entry(path: str, *methods: str, public: bool = False) -> RouteEntry:
    return RouteEntry(*parse_path(path), methods or ("GET",), print, StartMode.ASYNC, public=public)


def table(*paths: str) -> RouteTable:
    made = RouteTable()
    for path in paths:
        made.add(entry(path))
    return made


def found(routes: RouteTable, path: str) -> tuple[str, tuple[str, ...]] | None:
    match = routes.find(path)
    return None if match is None else (match.entries["GET"].path, match.values)


# --- paths and methods ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "parsed"),
    [
        ("/", ("/", ("",), ())),
        ("/a/", ("/a", ("a",), ())),
        ("/a/{b}", ("/a/{b}", ("a", None), ("b",))),
        ("/{b}/x/{c}", ("/{b}/x/{c}", (None, "x", None), ("b", "c"))),
        ("/.well-known/x.json", ("/.well-known/x.json", (".well-known", "x.json"), ())),
    ],
)
def test_path_is_split_into_segments(path: str, parsed: Any) -> None:
    assert parse_path(path) == parsed


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (5, "such as '/version'"),
        ("version", "such as '/version'"),
        ("", "such as '/version'"),
        ("/a?b=1", "neither a query"),
        ("/a#b", "neither a query"),
        ("/a%20b", "decoded"),
        ("/a b", "without spaces"),
        ("/a\n", "decoded"),
        ("/a//b", "a segment is"),
        ("/a{b}", "a segment is"),
        ("/{a", "a segment is"),
        ("/{}", "identifier"),
        ("/{a-b}", "identifier"),
        ("/{a}/{a}", "occurs once"),
    ],
)
def test_invalid_path_is_refused(path: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        parse_path(path)


def test_methods_are_capitalized_and_unique() -> None:
    assert parse_methods("/a", ["get", "POST", "GET"]) == ("GET", "POST")


@pytest.mark.parametrize(
    ("methods", "why"),
    [("GET", r"write methods=\['GET'\]"), (["OPTIONS"], "'OPTIONS' is not one of"), ([], "at least one of")],
)
def test_invalid_methods_are_refused(methods: Any, why: str) -> None:
    with pytest.raises(RegistrationError, match=why):
        parse_methods("/a", methods)


# --- finding --------------------------------------------------------------------------------------


def test_route_is_found_by_its_path() -> None:
    routes = table("/", "/a", "/a/b")
    assert len(routes) == 3
    assert found(routes, "/") == ("/", ())
    assert found(routes, "/a/b") == ("/a/b", ())
    assert found(routes, "/b") is None


def test_name_matches_one_segment_that_is_not_empty() -> None:
    routes = table("/items/{id}")
    assert found(routes, "/items/a b") == ("/items/{id}", ("a b",))
    assert found(routes, "/items") is None
    assert found(routes, "/items/") is None
    assert found(routes, "/items/1/2") is None
    assert found(routes, "/other/1") is None


def test_literal_segment_takes_precedence_from_left_to_right() -> None:
    routes = table("/{a}/{b}", "/{a}/y", "/x/{b}", "/x/new")
    assert found(routes, "/x/new") == ("/x/new", ())
    assert found(routes, "/x/y") == ("/x/{b}", ("y",))
    assert found(routes, "/z/y") == ("/{a}/y", ("z",))
    assert found(routes, "/z/z") == ("/{a}/{b}", ("z", "z"))


def test_braces_in_a_request_are_no_pattern() -> None:
    routes = table("/items/{id}")
    assert found(routes, "/items/{id}") == ("/items/{id}", ("{id}",))


def test_routes_of_one_path_differ_in_methods() -> None:
    routes = RouteTable()
    get, post = entry("/items/{id}", "GET", public=True), entry("/items/{name}", "POST", "DELETE")
    routes.add(get)
    routes.add(post)
    match = routes.find("/items/1")
    assert match is not None
    assert (match.find("GET"), match.find("HEAD"), match.find("DELETE"), match.find("PUT")) == (get, get, post, None)
    assert match.allowed_methods == ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
    assert list(routes) == [get, post]
    assert (match.is_public("GET"), match.is_public("POST"), match.is_public("PUT")) == (True, False, False)
    with pytest.raises(RegistrationError, match=r"there is a route for POST at '/items/\{name\}' already"):
        routes.add(entry("/items/{other}", "PUT", "POST"))


def test_path_with_public_routes_only_is_public_for_every_method() -> None:
    routes = RouteTable()
    routes.add(entry("/", public=True))
    match = routes.find("/")
    assert match is not None
    assert match.is_public("DELETE")


def test_route_for_head_takes_precedence_over_get() -> None:
    routes = table("/a")
    head = entry("/a", "HEAD")
    routes.add(head)
    match = routes.find("/a")
    assert match is not None
    assert match.find("HEAD") is head


# --- reserved paths -------------------------------------------------------------------------------


@pytest.mark.parametrize("reserved", ["/mcp", "/mcp/*"])
def test_reserved_path_is_refused_in_either_order(reserved: str) -> None:
    routes = table("/mcp/below", "/mcpx") if reserved == "/mcp" else table("/mcpx")
    routes.reserve(reserved, "MCP")
    with pytest.raises(RegistrationError, match="route '/mcp': the server uses this path for MCP; choose another one"):
        routes.add(entry("/mcp"))
    with pytest.raises(RegistrationError, match="the server uses this path"):
        table("/mcp").reserve(reserved, "MCP")


def test_everything_below_can_be_reserved() -> None:
    routes = table("/livezy")
    routes.reserve("/livez/*", "health checks")
    with pytest.raises(RegistrationError, match="for health checks"):
        routes.add(entry("/livez/{worker}"))


def test_root_can_be_reserved() -> None:
    routes = table("/a")
    routes.reserve("/", "MCP")
    with pytest.raises(RegistrationError, match="route '/'"):
        routes.add(entry("/"))
