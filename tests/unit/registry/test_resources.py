"""Resources and templates: listings, and resolution of URIs."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from trunkline import Annotations, Icon, ResourceContents
from trunkline.config import Settings
from trunkline.errors import (
    ContentTooLarge,
    InvalidParams,
    InvalidUri,
    RegistrationError,
    ResourceAccessDenied,
    TemplateError,
)
from trunkline.protocol.types import ReadResourceResult
from trunkline.registry.handlers import read_handler
from trunkline.registry.resources import ResourceEntry, TemplateEntry, check_uri, make_resource, make_template
from trunkline.registry.results import BadResult

SETTINGS = Settings()


class Context:
    """Stands for the context of a call."""


def resource(uri: str, source: Any, **options: Any) -> ResourceEntry:
    return make_resource(
        uri, read_handler(source, Context, thread=False) if callable(source) else source, SETTINGS, **options
    )


def template(pattern: str, function: Any, **options: Any) -> TemplateEntry:
    return make_template(pattern, read_handler(function, Context, thread=False), SETTINGS, **options)


def read_template(entry: TemplateEntry, uri: str) -> Any:
    """The handler's arguments for a URI; UNSET if it does not match the template."""
    arguments = entry.arguments(uri)
    return UNSET if arguments is UNSET else entry.run(arguments, None, uri).contents[0].text


# --- URIs ----------------------------------------------------------------------------------------


@pytest.mark.row("Y11")
@pytest.mark.parametrize(
    "uri", ["a:", "doc://readme", "urn:isbn:1", "file:///a/b%20c", "x+y.z-1://é", "a:" + "x" * 2046]
)
def test_absolute_uri_is_accepted(uri: str) -> None:
    assert check_uri(uri, SETTINGS) == uri


@pytest.mark.row("Y11", "R15")
@pytest.mark.parametrize(
    ("uri", "kind", "why"),
    [
        ("a:" + "x" * 2047, "uri_too_long", "it has 2049 characters, 2048 is the most"),
        ("", "invalid_uri", "it is empty"),
        ("::::", "invalid_uri", "it does not begin with a scheme"),
        ("readme", "invalid_uri", "it does not begin with a scheme"),
        ("1a://b", "uri_syntax_error", "it has a character that is illegal at this position"),
        ("ht!tp://[", "uri_syntax_error", "it has a character that is illegal at this position"),
        ("doc://a b", "uri_syntax_error", "it has a character that is illegal at this position"),
        ("doc://a\n", "uri_syntax_error", "it has a character that is illegal at this position"),
        ('doc://"a"', "uri_syntax_error", "it has a character that is illegal at this position"),
    ],
)
def test_invalid_uri_is_refused(uri: str, kind: str, why: str) -> None:
    with pytest.raises(InvalidUri, match=why) as caught:
        check_uri(uri, SETTINGS)
    assert caught.value.data["kind"] == kind
    assert len(caught.value.data["uri"]) <= 200

    with pytest.raises(RegistrationError, match=why) as refused:
        resource(uri, "x")
    assert refused.value.kind == kind


# --- resources -----------------------------------------------------------------------------------


@pytest.mark.row("R04")
def test_resource_definition_has_all_options() -> None:
    entry = resource(
        "doc://readme",
        "# Hi",
        name="readme",
        title="Read me",
        description="Start here.",
        mime_type="text/markdown",
        size=4,
        annotations=Annotations(audience=["user"], priority=0.5, last_modified="2025-01-02T03:04:05Z"),
        icons=[Icon("https://example.com/i.png")],
        meta={"owner": "docs"},
    )

    assert entry.key == "doc://readme"
    assert msgspec.to_builtins(entry.definition) == {
        "uri": "doc://readme",
        "name": "readme",
        "title": "Read me",
        "description": "Start here.",
        "mimeType": "text/markdown",
        "size": 4,
        "annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "2025-01-02T03:04:05Z"},
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"owner": "docs"},
    }


def test_resource_name_comes_from_function() -> None:
    def readme() -> str:
        """Start here."""
        return "# Hi"

    assert resource("doc://readme", readme).definition.name == "readme"
    assert resource("doc://readme", readme).definition.description == "Start here."
    assert resource("doc://readme", readme, description="other").definition.description == "other"
    assert resource("doc://readme", "text").definition.name == "doc://readme"
    assert resource("doc://readme", "text").definition.description is None


@pytest.mark.row("R10")
def test_resource_is_value_or_function() -> None:
    static = resource("doc://readme", "text")
    dynamic = resource("doc://now", lambda limit=5: f"made with {limit}")
    expected = [("text", static), ("made with 5", dynamic)]
    for text, entry in expected:
        result = entry.run(entry.arguments, None, entry.key)
        assert result == ReadResourceResult([ResourceContents(entry.key, "text/plain", text=text)])


def test_function_with_required_argument_is_refused() -> None:
    def greet(name: str) -> str:
        return name

    with pytest.raises(RegistrationError, match=r"put \{name\} into the URI, or give the argument a default"):
        resource("greet://", greet)


@pytest.mark.row("Y06")
def test_malformed_mime_type_is_refused() -> None:
    with pytest.raises(RegistrationError, match="'foo' is not a MIME type"):
        resource("doc://readme", "x", mime_type="foo")


def test_whole_result_is_checked_and_forwarded() -> None:
    good = ReadResourceResult([ResourceContents("doc://a", text="x")])
    bad = ReadResourceResult([ResourceContents("doc://a")])

    entry = resource("doc://readme", lambda: good)
    assert entry.run(entry.arguments, None, entry.key) is good
    entry = resource("doc://readme", lambda: bad)
    with pytest.raises(BadResult):
        entry.run(entry.arguments, None, entry.key)


def test_text_above_limit_is_refused() -> None:
    handler = read_handler(lambda: "abcd", Context, thread=False)
    entry = make_resource("doc://a", handler, Settings(max_text=4))
    assert entry.run(entry.arguments, None, entry.key).contents[0].text == "abcd"

    entry = make_resource("doc://a", handler, Settings(max_text=3))
    with pytest.raises(ContentTooLarge, match="above the limit of 3"):
        entry.run(entry.arguments, None, entry.key)


# --- templates -----------------------------------------------------------------------------------


@pytest.mark.row("R07")
def test_template_definition_has_all_options() -> None:
    def profile(username: str) -> str:
        """Whose it is."""
        return username

    entry = template(
        "user://{username}/profile",
        profile,
        title="Profile",
        mime_type="text/plain",
        annotations=Annotations(priority=1),
        icons=[Icon("https://example.com/i.png")],
        meta={"a": 1},
    )

    assert entry.key == "user://{username}/profile"
    assert msgspec.to_builtins(entry.definition) == {
        "uriTemplate": "user://{username}/profile",
        "name": "profile",
        "title": "Profile",
        "description": "Whose it is.",
        "mimeType": "text/plain",
        "annotations": {"priority": 1},
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"a": 1},
    }
    assert template("a://{username}", profile, name="n", description="d").definition.name == "n"
    assert template("a://{username}", profile, name="n", description="d").definition.description == "d"


@pytest.mark.row("R08")
def test_handler_gets_uri_variables() -> None:
    entry = template("user://{username}/profile", lambda username: f"profile of {username}")

    assert read_template(entry, "user://alice/profile") == "profile of alice"
    assert read_template(entry, "user://alice/photo") is UNSET
    assert read_template(entry, "user://a%20b/profile") == "profile of a b"


@pytest.mark.row("R09")
def test_last_variable_cannot_traverse_path() -> None:
    entry = template("file:///{path}", lambda path: path)

    assert read_template(entry, "file:///app/config.json") == "app/config.json"
    for climbing in ("file:///../etc/passwd", "file:///a/%2e%2e/b", "file:////etc/passwd"):
        with pytest.raises(ResourceAccessDenied, match="leaves the scope"):
            entry.arguments(climbing)


def test_traversal_is_allowed_without_guard() -> None:
    assert read_template(template("file:///{path}", lambda path: path, guard=False), "file:///../a") == "../a"


@pytest.mark.row("Y11")
def test_template_without_scheme_gets_valid_uris_only() -> None:
    entry = template("{+path}", lambda path: f"at {path}")

    assert read_template(entry, "doc://a/b") == "at doc://a/b"
    with pytest.raises(InvalidUri):
        entry.arguments("a/b")


def test_all_uri_values_are_decoded() -> None:
    assert read_template(template("x:{a}:{b}", lambda a, b: a + b), "x:1%20:2") == "1 2"
    assert read_template(template("x:{a}:{b}", lambda a, b: a + b), "x:1:2") == "12"
    assert read_template(template("x:{a.b}", lambda **more: more["a.b"]), "x:1") == "1"


@pytest.mark.row("A09")
def test_template_characters_are_literal() -> None:
    entry = template("a.b://{x}", lambda x: x)

    assert read_template(entry, "a.b://1") == "1"
    assert read_template(entry, "aXb://1") is UNSET


def test_uri_values_are_converted_to_parameter_types() -> None:
    def item(number: int, verbose: bool = False) -> str:
        return f"{number!r} {verbose!r}"

    entry = template("item://{number}{?verbose}", item)

    assert read_template(entry, "item://5") == "5 False"
    assert read_template(entry, "item://5?verbose=true") == "5 True"
    with pytest.raises(InvalidParams, match=r"the URI does not fit 'item://\{number\}\{\?verbose\}'") as caught:
        entry.arguments("item://five")
    assert caught.value.data["uri"] == "item://five"


def test_kwargs_accept_every_variable() -> None:
    entry = template("a://{x}/{y}", lambda x, **more: f"{x} {more}")

    assert read_template(entry, "a://1/2") == "1 {'y': '2'}"


def item(x: str) -> str:
    return x


def part(x: str, z: str = "") -> str:
    return x + z


def test_mismatched_pattern_and_function_are_refused() -> None:
    with pytest.raises(TemplateError, match=r"URI template 'a://\{x\}/\{y\}': item has no parameter for \{y\}"):
        template("a://{x}/{y}", item)
    with pytest.raises(TemplateError, match=r"URI template 'a://b\{\?z\}': nothing in it gives part its argument 'x'"):
        template("a://b{?z}", part)


@pytest.mark.row("Y11")
def test_invalid_template_is_refused() -> None:
    with pytest.raises(TemplateError) as caught:
        template("a://{x", item)
    assert caught.value.kind == "invalid_uri_template"
    with pytest.raises(RegistrationError, match="'foo' is not a MIME type"):
        template("a://{x}", item, mime_type="foo")
