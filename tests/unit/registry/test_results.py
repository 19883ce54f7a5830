"""Results: return values of handlers, as content and as structured content."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import jsonschema_rs
import msgspec
import pytest
from msgspec import UNSET, Meta, Struct

from trunkline import AudioContent, CallToolResult, EmbeddedResource, ImageContent, ResourceContents, ResourceLink
from trunkline import TextContent as Text
from trunkline.config import Settings
from trunkline.errors import ContentTooLarge, RegistrationError
from trunkline.protocol.types import ContentBlock
from trunkline.protocol.types.tools import ToolResult
from trunkline.registry.results import BadResult, as_block, check_mime, resource_contents, tool_output

DEFAULTS = Settings()
SMALL = Settings(max_text=10, max_binary=4)
IMAGE = ImageContent("AAEC", "image/png")


def converted(returns: Any, value: Any, settings: Settings = DEFAULTS, **options: Any) -> dict[str, Any]:
    """The result of a tool with this return annotation for a value, as sent."""
    output = tool_output(returns, "tool", settings, **options)
    made = msgspec.json.decode(msgspec.json.encode(output.convert(value, None)))
    if (schema := output.wrapped_schema()) is not None and not made["isError"]:
        jsonschema_rs.meta.validate(schema)
        assert schema["type"] == "object"
        jsonschema_rs.validate(schema, made["structuredContent"])
    return made


def text_of(result: dict[str, Any]) -> str:
    (block,) = result["content"]
    assert block["type"] == "text"
    return block["text"]


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Box(Struct):
    size: float
    points: list[Point] = []


class Pair(Struct, array_like=True):
    left: int
    right: int


class Coordinates(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    deep: bool


Age = NewType("Age", int)


# --- declared values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "value", "structured"),
    [
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Point, Point(1), {"x": 1, "y": 0}),
        (Point, {"x": 1, "y": 2, "unknown": 3}, {"x": 1, "y": 2}),
        (Box, Box(1.5, [Point(1)]), {"size": 1.5, "points": [{"x": 1, "y": 0}]}),
        (Options, {"deep": True}, {"deep": True}),
        (Annotated[dict[str, int], "counts"], {"a": 1}, {"a": 1}),
    ],
)
def test_object_is_sent_structured_and_as_text(returns: Any, value: Any, structured: Any) -> None:
    result = converted(returns, value)

    assert result["structuredContent"] == structured
    assert msgspec.json.decode(text_of(result)) == structured
    assert result["isError"] is False


@pytest.mark.parametrize(
    ("returns", "value", "structured"),
    [
        (int, 3, 3),
        (float, 1, 1.0),
        (bool, True, True),
        (int | None, None, None),
        (int | str, "a", "a"),
        (Literal["a"], "a", "a"),
        (Colour, Colour.RED, "red"),
        (list[Point], [Point(1)], [{"x": 1, "y": 0}]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (set[int], {1}, [1]),
        (Point | None, Point(1), {"x": 1, "y": 0}),
        (Pair, Pair(1, 2), [1, 2]),
        (Coordinates, Coordinates(1, 2), [1, 2]),
        (Age, 5, 5),
        (Annotated[int, Meta(ge=1)], 1, 1),
        (list[Any], [], []),
    ],
)
def test_non_object_is_wrapped(returns: Any, value: Any, structured: Any) -> None:
    assert converted(returns, value)["structuredContent"] == {"result": structured}


@pytest.mark.parametrize("settings", [DEFAULTS, SMALL])
def test_text_is_wrapped_in_structured_content(settings: Settings) -> None:
    result = converted(str, 'a "b"', settings)

    assert text_of(result) == 'a "b"'
    assert result["structuredContent"] == {"result": 'a "b"'}


def test_wrapped_schema_has_definitions_at_the_root() -> None:
    output = tool_output(list[Point], "tool", DEFAULTS)
    point = {
        "title": "Point",
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }

    assert output.schema() == {"type": "array", "items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": point}}
    assert output.wrapped_schema() == {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/Point"}}},
        "required": ["result"],
        "$defs": {"Point": point},
    }


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        (int, "3"),
        (int, True),
        (int, None),
        (str, 3),
        (str, None),
        (str, b"abc"),
        (float, float("nan")),
        (list[int], [1, "a"]),
        (Point, Point("no")),
        (list[Point], [Point(1, None)]),
        (Box, Box(1.0, [Point("no")])),
        (Options, {}),
        (Literal["a"], "b"),
        (Annotated[int, Meta(ge=1)], 0),
        (dict[str, Any], {"a": object()}),
        (Point, None),
    ],
)
def test_value_violating_type_is_bad_result(returns: Any, value: Any) -> None:
    with pytest.raises(BadResult, match="the value does not match the declared return type") as caught:
        converted(returns, value)

    assert caught.value.data["kind"] == "invalid_content"


def test_type_without_json_is_refused_with_reason() -> None:
    with pytest.raises(
        RegistrationError, match=r"^find: its return type has no schema: complex is not supported"
    ) as caught:
        tool_output(list[complex], "find", DEFAULTS)

    assert caught.value.kind == "tool_schema_invalid"
    assert tool_output(list[complex], "find", DEFAULTS, structured=False).schema() is None


# --- content blocks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returns",
    [
        UNSET,
        None,
        type(None),
        Any,
        object,
        CallToolResult,
        CallToolResult | None,
        ImageContent,
        ImageContent | None,
        str | ImageContent,
        ContentBlock,
        list[ImageContent],
        list[str | ImageContent],
        list[ContentBlock],
        Sequence[Text],
        Iterable[Text],
        tuple[Text, ...],
        tuple[str, ImageContent],
    ],
)
def test_content_annotation_has_no_output_schema(returns: Any) -> None:
    output = tool_output(returns, "tool", DEFAULTS)

    assert output.returns is UNSET
    assert output.schema() is None
    assert output.wrapped_schema() is None


@pytest.mark.row("T05", "T16")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, []),
        ("a", [{"type": "text", "text": "a"}]),
        (3, [{"type": "text", "text": "3"}]),
        ({"a": [1]}, [{"type": "text", "text": '{"a":[1]}'}]),
        ([1, 2], [{"type": "text", "text": "[1,2]"}]),
        (Point(1), [{"type": "text", "text": '{"x":1,"y":0}'}]),
        (Text("a", mime_type="application/json"), [{"type": "text", "text": "a", "mimeType": "application/json"}]),
        (IMAGE, [{"type": "image", "data": "AAEC", "mimeType": "image/png"}]),
        (AudioContent("AAEC", "audio/wav"), [{"type": "audio", "data": "AAEC", "mimeType": "audio/wav"}]),
        (ResourceLink("a://b", "b"), [{"type": "resource_link", "uri": "a://b", "name": "b"}]),
        (
            EmbeddedResource(ResourceContents("a://b", text="t")),
            [{"type": "resource", "resource": {"uri": "a://b", "text": "t"}}],
        ),
        (
            ["look", IMAGE],
            [{"type": "text", "text": "look"}, {"type": "image", "data": "AAEC", "mimeType": "image/png"}],
        ),
        (CallToolResult([Text("a")], is_error=True), [{"type": "text", "text": "a"}]),
        (CallToolResult(["a"]), [{"type": "text", "text": "a"}]),
    ],
)
def test_values_become_content_blocks(value: Any, content: Any) -> None:
    result = converted(UNSET, value)

    assert result["content"] == content
    assert "structuredContent" not in result


def test_structured_false_sends_text_only() -> None:
    result = converted(dict[str, int], {"a": 1}, structured=False)

    assert text_of(result) == '{"a":1}'
    assert "structuredContent" not in result


def test_unencodable_value_is_bad_result() -> None:
    with pytest.raises(BadResult, match="object has no JSON"):
        converted(UNSET, object())


# --- whole results -------------------------------------------------------------------------------


def test_whole_result_may_carry_declared_value() -> None:
    assert converted(Point, CallToolResult([Text("a")], {"x": 1}))["structuredContent"] == {"x": 1}
    assert converted(int, CallToolResult([Text("a")], {"result": 1}))["structuredContent"] == {"result": 1}


def test_failed_whole_result_needs_no_value() -> None:
    assert converted(Point, CallToolResult([Text("a")], is_error=True))["isError"] is True


@pytest.mark.parametrize(
    ("returns", "structured"),
    [(Point, UNSET), (Point, {"x": "a"}), (int, UNSET), (int, {"x": 1}), (int, {"result": "a"})],
)
def test_whole_result_violating_type_is_bad_result(returns: Any, structured: Any) -> None:
    with pytest.raises(BadResult):
        converted(returns, CallToolResult([Text("a")], structured))


# --- limits and formats --------------------------------------------------------------------------


def kind_of(make: Any) -> str:
    with pytest.raises((BadResult, ContentTooLarge)) as caught:
        make()
    return caught.value.data["kind"]


@pytest.mark.row("Y10")
def test_text_limit_is_inclusive() -> None:
    assert as_block("1234567890", SMALL) == Text("1234567890")
    assert as_block("12345678901", DEFAULTS) == Text("12345678901")
    for value in ("12345678901", Text("12345678901"), {"a": "1234567"}):
        assert kind_of(lambda value=value: as_block(value, SMALL)) == "text_too_long"
        assert kind_of(lambda value=value: resource_contents("12345678901", "a://b", None, SMALL)) == "text_too_long"
    for returns in (str, list[str]):
        value = "12345678901" if returns is str else ["123456789"]
        assert kind_of(lambda returns=returns, value=value: converted(returns, value, SMALL)) == "text_too_long"


@pytest.mark.row("Y09")
def test_binary_content_must_be_base64_within_the_limit() -> None:
    assert as_block(ImageContent("AAECAw==", "image/png"), SMALL)
    for data in ("not base64!", "AAE", "é", "AAE=\n"):
        assert kind_of(lambda data=data: as_block(ImageContent(data, "image/png"), SMALL)) == "invalid_encoding"
    large = "AAECAwQ="
    contents = ResourceContents("a://b", blob=large)
    for block in (ImageContent(large, "image/png"), AudioContent(large, "audio/wav"), EmbeddedResource(contents)):
        assert as_block(block, DEFAULTS) is block
        assert kind_of(lambda block=block: as_block(block, SMALL)) == "binary_data_too_large"
        assert kind_of(lambda block=block: converted(UNSET, CallToolResult([block]), SMALL)) == "binary_data_too_large"
    assert kind_of(lambda: resource_contents(b"12345", "a://b", None, SMALL)) == "binary_data_too_large"
    assert kind_of(lambda: resource_contents(contents, "a://b", None, SMALL)) == "binary_data_too_large"


def test_contents_hold_either_text_or_a_blob() -> None:
    for contents in (ResourceContents("a://b"), ResourceContents("a://b", text="a", blob="AAEC")):
        assert (
            kind_of(lambda contents=contents: resource_contents(contents, "a://b", None, DEFAULTS)) == "invalid_content"
        )


MIME_TYPES = [
    *("text/plain", "text/markdown", "application/json", "image/png", "image/jpeg", "image/gif"),
    *("audio/mp3", "audio/wav", "audio/aac", "application/vnd.mine+json", "text/html; charset=utf-8"),
]


@pytest.mark.row("Y06")
@pytest.mark.parametrize("mime_type", MIME_TYPES)
def test_custom_mime_types_are_accepted(mime_type: str) -> None:
    assert check_mime(mime_type) == mime_type
    assert as_block(ImageContent("AAEC", mime_type), DEFAULTS)


@pytest.mark.row("Y06")
@pytest.mark.parametrize("mime_type", ["foo", "", "text/", "/plain", "text/plain/x", "text plain", "a/b\n"])
def test_invalid_mime_type_is_refused(mime_type: str) -> None:
    with pytest.raises(RegistrationError, match="is not a MIME type, such as text/markdown") as caught:
        check_mime(mime_type)
    assert caught.value.kind == "invalid_mime_type"
    contents = ResourceContents("a://b", mime_type, text="a")
    for block in (ImageContent("AAEC", mime_type), EmbeddedResource(contents)):
        assert kind_of(lambda block=block: as_block(block, DEFAULTS)) == "invalid_mime_type"


# --- contents of resources -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "mime_type", "contents"),
    [
        ("a", None, ResourceContents("a://b", "text/plain", text="a")),
        ("a", "text/markdown", ResourceContents("a://b", "text/markdown", text="a")),
        (b"\0\1\2", None, ResourceContents("a://b", "application/octet-stream", blob="AAEC")),
        (bytearray(b"\0"), "image/png", ResourceContents("a://b", "image/png", blob="AA==")),
        ({"a": 1}, None, ResourceContents("a://b", "application/json", text='{"a":1}')),
        ([], None, ResourceContents("a://b", "application/json", text="[]")),
        ([Point(1)], "text/x-points", ResourceContents("a://b", "text/x-points", text='[{"x":1,"y":0}]')),
        (ResourceContents("c://d", text="x"), "text/html", ResourceContents("c://d", text="x")),
    ],
)
def test_any_value_becomes_resource_contents(value: Any, mime_type: str | None, contents: Any) -> None:
    assert resource_contents(value, "a://b", mime_type, DEFAULTS) == [contents]


def test_resource_may_have_several_contents() -> None:
    several = [ResourceContents("c://1", text="x"), ResourceContents("c://2", blob="AAEC")]

    assert resource_contents(several, "a://b", None, DEFAULTS) == several
    assert resource_contents(tuple(several), "a://b", None, DEFAULTS) == several


def test_unencodable_resource_value_is_bad_result() -> None:
    assert kind_of(lambda: resource_contents(object(), "a://b", None, DEFAULTS)) == "invalid_content"


# --- results of other servers ----------------------------------------------------------------------------------------

FROM_ELSEWHERE = {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}, "mine": 1}


@pytest.mark.parametrize("returns", [UNSET, ToolResult, ToolResult | None, list[ToolResult]])
def test_client_result_is_forwarded(returns: Any) -> None:
    failed = ToolResult([Text("a"), IMAGE], None, {"x": 1}, True, FROM_ELSEWHERE)

    assert converted(returns, failed) == {
        "content": [{"type": "text", "text": "a"}, {"type": "image", "data": "AAEC", "mimeType": "image/png"}],
        "structuredContent": {"x": 1},
        "isError": True,
        "_meta": {"mine": 1},
    }
    assert converted(returns, ToolResult([], "a")) == {"content": [], "isError": False}
    null = ToolResult([], None, None, has_structured=True)
    assert converted(returns, null) == {"content": [], "structuredContent": None, "isError": False}


def test_forwarded_result_is_checked_against_type() -> None:
    declared = Annotated[ToolResult, int]
    for structured in (5, {"result": 5}):
        assert converted(declared, ToolResult([], 5, structured))["structuredContent"] == {"result": 5}
    for structured in (None, "a", {"x": 1}):
        with pytest.raises(BadResult):
            converted(declared, ToolResult([], 5, structured))
    assert converted(Annotated[ToolResult, Point], ToolResult([], None, {"x": 1, "y": 2}))["structuredContent"] == {
        "x": 1,
        "y": 2,
    }
    assert converted(declared, ToolResult([Text("no")], None, None, True))["isError"]


def test_result_text_joins_all_blocks() -> None:
    assert ToolResult([Text("a"), IMAGE, Text("b")], None).text == "a\nb"
