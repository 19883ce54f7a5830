"""Messages for peers of older revisions, validated against the official schemas of those revisions."""

from functools import cache
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import UNSET, Raw, Struct
from msgspec.structs import fields
from tests.official import check, schema
from tests.unit.protocol.samples import samples

from trunkline.protocol import types as t
from trunkline.protocol.methods import METHODS, Method, Side
from trunkline.protocol.projection import OLDER_FORMS, WINDOWS, Window, project
from trunkline.protocol.revisions import Revision

OLDEST, WITH_AUDIO, WITH_TITLES, WITH_ICONS, MODERN = Revision
STRUCTS = [
    value
    for name in t.__all__
    if isinstance(value := getattr(t, name), type) and issubclass(value, Struct) and value is not t.Wire
]
PUBLISHED = [WITH_AUDIO, WITH_TITLES, WITH_ICONS, MODERN]  # the oldest one has no JSON schema in the official suite

# Members of the modern era that other code adds to a result or to params.
ENVELOPE = {"_meta", "resultType", "ttlMs", "cacheScope"}


@cache
def definitions(revision: Revision) -> dict[str, Any]:
    document = schema(revision.value)
    return document.get("$defs") or document["definitions"]


def members(shape: dict[str, Any], revision: Revision) -> dict[str, Any]:
    """The members of a shape, with those of all shapes that it is composed of or chosen from."""
    if "$ref" in shape:
        return members(definitions(revision)[shape["$ref"].rsplit("/", 1)[1]], revision)
    parts = [members(part, revision) for part in (*shape.get("allOf", ()), *shape.get("anyOf", ()))]
    return {name: member for part in [shape.get("properties", {}), *parts] for name, member in part.items()}


def closed(node: Any, *, params: bool = False) -> Any:
    """A schema that rejects members that it does not name."""
    if isinstance(node, list):
        return [closed(part) for part in node]
    if not isinstance(node, dict):
        return node
    shut = {name: closed(part, params=name == "params") for name, part in node.items()}
    if isinstance(node.get("required"), list):
        shut["required"] = [name for name in node["required"] if name not in ENVELOPE]
    if node.get("properties"):
        shut.setdefault("additionalProperties", False)
        if params:  # any request and notification may carry it
            shut["properties"]["_meta"] = {}
    return shut


@cache
def closed_document(revision: Revision) -> dict[str, Any]:
    shut = {
        name: closed({"properties": members(shape, revision)} if "allOf" in shape else shape)
        for name, shape in definitions(revision).items()
    }
    any_meta = {name: {} for name in shut if name.endswith("MetaObject")}
    return {"$schema": schema(revision.value)["$schema"], place(revision): {**shut, **any_meta}}


def place(revision: Revision) -> str:
    return "$defs" if "$defs" in schema(revision.value) else "definitions"


def faults(value: Struct, definition: dict[str, Any], revision: Revision) -> list[str]:
    validator = jsonschema_rs.validator_for({**closed_document(revision), **definition})
    sent = msgspec.json.decode(msgspec.json.encode(value))
    return [f"{error.instance_path} {error.message}" for error in validator.iter_errors(sent)]


def request_of(row: Method, revision: Revision) -> tuple[str, dict[str, Any]] | None:
    """The definition of a method, by name, if that revision has it."""
    for name, definition in definitions(revision).items():
        if definition.get("properties", {}).get("method", {}).get("const") == row.name:
            return name, definition
    return None


def result_definition(row: Method, revision: Revision) -> dict[str, Any] | None:
    found = request_of(row, revision)
    if found is None or row.result in (None, Raw):
        return None
    name = "EmptyResult" if row.result is t.Empty else found[0].removesuffix("Request") + "Result"
    return {"$ref": f"#/{place(revision)}/{name}"}


def sayable(value: Any, revision: Revision) -> bool:
    """Return whether the revision has the mode at all: older ones have no URL elicitation."""
    return not (isinstance(value, t.ElicitParams) and value.mode == "url" and revision < WITH_ICONS)


PARAMS = [(row, revision) for row in METHODS for revision in PUBLISHED if request_of(row, revision)]
RESULTS = [(row, revision) for row in METHODS for revision in PUBLISHED if result_definition(row, revision)]


def case_name(value: Any) -> str:
    if isinstance(value, Revision):
        return value.value
    return value.name if isinstance(value, Method) else value.__name__


@pytest.mark.parametrize(("row", "revision"), PARAMS, ids=case_name)
def test_projected_params_match_revision_schema(row: Method, revision: Revision) -> None:
    _, definition = request_of(row, revision) or pytest.fail("no such request")
    params = closed(definition["properties"].get("params", {}), params=True)

    for sample in samples(row.params):
        if sayable(sample, revision):
            assert faults(project(sample, revision), params, revision) == []


@pytest.mark.parametrize(("row", "revision"), RESULTS, ids=case_name)
def test_projected_results_match_revision_schema(row: Method, revision: Revision) -> None:
    definition = result_definition(row, revision)
    assert definition

    for sample in samples(row.result):
        assert faults(project(sample, revision), definition, revision) == []


PATHS = {  # types that have no name in the schemas, or several
    t.RootsCapability: [["ClientCapabilities", "roots"]],
    t.SamplingCapability: [["ClientCapabilities", "sampling"]],
    t.ElicitationCapability: [["ClientCapabilities", "elicitation"]],
    t.RequestedSchema: [["ElicitRequest", "params", "requestedSchema"]],
    t.ResourceContents: [["TextResourceContents"], ["BlobResourceContents"]],
    t.Reference: [["PromptReference"], ["ResourceTemplateReference"]],
    t.StringSchema: [["StringSchema"], ["EnumSchema"]],
}
ROWS = {row.params: row for row in METHODS if row.params is not t.Empty}


def known_members(cls: type[Struct], revision: Revision) -> set[str] | None:
    """The members that a revision has for a type; None if it does not have the type."""
    if cls in ROWS:
        found = request_of(ROWS[cls], revision)
        always = set[str]() if revision is MODERN else {"_meta"}
        return always.union(members(found[1]["properties"]["params"], revision)) if found else None
    shapes = [shape_at(path, revision) for path in PATHS.get(cls, [[cls.__name__]])]
    return None if None in shapes else set[str]().union(*(members(shape, revision) for shape in shapes if shape))


def shape_at(path: list[str], revision: Revision) -> dict[str, Any] | None:
    shape: dict[str, Any] | None = {"properties": definitions(revision)}
    for name in path:
        shape = members(shape, revision).get(name) if shape else None
    return shape


KNOWN = [(cls, revision) for cls in STRUCTS for revision in PUBLISHED if known_members(cls, revision) is not None]


@pytest.mark.parametrize(("cls", "revision"), KNOWN, ids=case_name)
def test_projection_keeps_members_of_revision(cls: type[Struct], revision: Revision) -> None:
    known = known_members(cls, revision)
    for sample in samples(cls):
        sent = project(sample, revision)
        if type(sent) is cls:
            assert builtins(sample).keys() & known <= builtins(sent).keys() <= known


@pytest.mark.parametrize("row", [row for row in METHODS if row.exists_in(OLDEST)], ids=case_name)
def test_projected_messages_are_valid_in_2024_11_05(row: Method) -> None:
    receiver = "server" if row.is_received_by(Side.SERVER) else "client"
    sender = "client" if receiver == "server" else "server"
    for params in samples(row.params):
        body = {"jsonrpc": "2.0", "method": row.name, "params": builtins(project(params, OLDEST))}
        check({**body, "id": 1} if row.is_request else body, revision=OLDEST.value, sender=sender)
    for result in samples(row.result) if row.is_request else ():
        answer = {"jsonrpc": "2.0", "id": 1, "result": builtins(project(result, OLDEST))}
        check(answer, revision=OLDEST.value, sender=receiver, answers=row.name)


def builtins(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize("revision", Revision, ids=case_name)
@pytest.mark.parametrize("name", list(dict.fromkeys([*WINDOWS, *OLDER_FORMS])))
def test_unchanged_value_is_same_object(name: str, revision: Revision) -> None:
    for sample in samples(getattr(t, name)):
        sent = project(sample, revision)

        assert project(sent, revision) is sent


@pytest.mark.parametrize("value", ["a", None, {"a": 1}, [1], Raw(b"{}")])
def test_other_types_are_not_projected(value: Any) -> None:
    assert project(value, OLDEST) is value


def test_type_of_another_library_is_not_projected_by_its_name() -> None:
    class Annotations(Struct):
        last_modified: str

    value = Annotations("today")
    assert project(value, OLDEST) is value


def test_window_rows_name_optional_members() -> None:
    for name, row in WINDOWS.items():
        cls: type[Struct] = getattr(t, name)
        optional = {
            field.name for field in fields(cls) if not field.required and field.default is not msgspec.NODEFAULT
        }
        assert set(row) <= optional, cls


def test_window_includes_both_ends() -> None:
    window = Window(WITH_AUDIO, WITH_TITLES)

    assert [window.covers(revision) for revision in Revision] == [False, True, True, False, False]


def test_projection_does_not_change_the_original() -> None:
    result = t.ListToolsResult([t.Tool("a", {"type": "object"}, title="A")])

    assert project(result, OLDEST) == t.ListToolsResult([t.Tool("a", {"type": "object"})])
    assert result.tools[0].title == "A"


def test_only_changed_parts_are_copied() -> None:
    plain, titled = t.Tool("a", {"type": "object"}), t.Tool("b", {"type": "object"}, title="B")
    older = project(t.ListToolsResult([plain, titled]), OLDEST)

    assert older.tools[0] is plain
    assert older.tools[1] is not titled


# 2024-11-05 has no JSON schema in the official suite, so its members are listed here.


@pytest.mark.parametrize(
    ("cls", "members"),
    [
        (t.TextContent, {"type", "text", "annotations"}),
        (t.ImageContent, {"type", "data", "mimeType", "annotations"}),
        (t.EmbeddedResource, {"type", "resource", "annotations"}),
        (t.Annotations, {"audience", "priority"}),
        (t.Implementation, {"name", "version"}),
        (t.ClientCapabilities, {"roots", "sampling", "experimental"}),
        (t.RootsCapability, {"listChanged"}),
        (t.SamplingCapability, set()),
        (t.ServerCapabilities, {"tools", "resources", "prompts", "logging", "experimental"}),
        (t.ProgressParams, {"progressToken", "progress", "total", "_meta"}),
        (t.Tool, {"name", "inputSchema", "description"}),
        (t.CallToolParams, {"name", "arguments", "_meta"}),
        (t.CallToolResult, {"content", "isError", "_meta"}),
        (t.Resource, {"uri", "name", "description", "mimeType", "size", "annotations"}),
        (t.ResourceTemplate, {"uriTemplate", "name", "description", "mimeType", "annotations"}),
        (t.Prompt, {"name", "description", "arguments"}),
        (t.PromptArgument, {"name", "description", "required"}),
        (t.CompleteParams, {"ref", "argument", "_meta"}),
        (t.Root, {"uri", "name"}),
        (t.ListRootsResult, {"roots", "_meta"}),
        (t.SamplingMessage, {"role", "content"}),
        (
            t.CreateMessageParams,
            {
                *("messages", "maxTokens", "systemPrompt", "modelPreferences", "includeContext", "temperature"),
                *("stopSequences", "metadata", "_meta"),
            },
        ),
    ],
)
def test_2024_11_05_gets_its_own_members(cls: type[Struct], members: set[str]) -> None:
    for sample in samples(cls):
        assert set(builtins(project(sample, OLDEST))) == members


# Values with an older representation.

ANNOTATIONS = t.Annotations(["user"], 0.5)


def test_audio_becomes_resource_in_older_revision() -> None:
    sound = t.AudioContent("eA==", "audio/wav", ANNOTATIONS, meta={"k": 1})
    older = project(t.CallToolResult([sound, sound, t.AudioContent("eQ==", "audio/wav")]), OLDEST)
    first, again, other = older.content

    assert isinstance(first, t.EmbeddedResource)
    assert isinstance(other, t.EmbeddedResource)
    assert (
        first
        == again
        == t.EmbeddedResource(t.ResourceContents(first.resource.uri, "audio/wav", blob="eA=="), ANNOTATIONS)
    )
    assert first.resource.uri.startswith("urn:uuid:")
    assert first.resource.uri != other.resource.uri


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (t.ResourceLink("file:///a", "a", "The A", annotations=ANNOTATIONS), "The A: file:///a"),
        (t.ResourceLink("file:///a", "a", annotations=ANNOTATIONS), "a: file:///a"),
    ],
)
def test_link_becomes_text_in_older_revision(link: t.ResourceLink, text: str) -> None:
    result = t.GetPromptResult([t.PromptMessage("user", link)])

    assert project(result, WITH_AUDIO) == t.GetPromptResult([t.PromptMessage("user", t.TextContent(text, ANNOTATIONS))])
    assert project(result, WITH_TITLES) is result


def test_converted_content_is_projected() -> None:
    annotations = t.Annotations(["user"], last_modified="2025-01-12T15:00:58Z")
    older = project(t.CallToolResult([t.ResourceLink("file:///a", "a", annotations=annotations)]), OLDEST)

    assert older.content == [t.TextContent("a: file:///a", t.Annotations(["user"]))]


WRITTEN, SEEN, HEARD = t.TextContent("Look:"), t.ImageContent("eA==", "image/png"), t.AudioContent("eA==", "audio/wav")
USED = t.ToolUseContent("1", "look", {})


def test_message_with_several_blocks_is_split() -> None:
    params = t.CreateMessageParams([t.SamplingMessage("user", [WRITTEN, SEEN, HEARD, USED], meta={"k": 1})], 9)

    assert project(params, WITH_TITLES).messages == [
        t.SamplingMessage("user", WRITTEN),
        t.SamplingMessage("user", SEEN),
        t.SamplingMessage("user", HEARD),
        t.SamplingMessage("user", t.TextContent("[tool_use left out]")),
    ]
    assert project(params, OLDEST).messages[2] == t.SamplingMessage("user", t.TextContent("[audio left out]"))
    assert project(params, WITH_ICONS) is params


def test_message_with_one_block_is_same_object() -> None:
    params = t.CreateMessageParams([t.SamplingMessage("user", WRITTEN)], 9)

    assert project(params, OLDEST) is params


@pytest.mark.parametrize(
    ("content", "older"),
    [
        ([SEEN], SEEN),
        ([WRITTEN, t.TextContent("a cat")], t.TextContent("Look:\n\na cat")),
        ([WRITTEN, SEEN], t.TextContent("Look:\n\n[image left out]")),
        (USED, t.TextContent("[tool_use left out]")),
        ([], t.TextContent("")),
    ],
)
def test_result_with_several_blocks_becomes_one(content: Any, older: t.SamplingBlock) -> None:
    result = t.CreateMessageResult("assistant", content, "m")

    assert project(result, WITH_TITLES) == t.CreateMessageResult("assistant", older, "m")


def test_titled_choices_become_enum_names() -> None:
    options = [t.EnumOption("r", "Red"), t.EnumOption("g", "Green")]
    form = t.RequestedSchema(
        {
            "one": t.StringSchema(one_of=options, default="r"),
            "many": t.MultiSelectEnumSchema(items=t.EnumItems(any_of=options)),
        },
        ["one", "many"],
    )
    older = t.RequestedSchema({"one": t.StringSchema(enum=["r", "g"], enum_names=["Red", "Green"])}, ["one"])

    assert project(t.ElicitParams("Which?", form), WITH_TITLES) == t.ElicitParams("Which?", older)


def test_pattern_is_sent_in_2025_11_25_only() -> None:
    field = t.StringSchema(pattern="[a-z]+")

    assert project(field, WITH_TITLES) == project(field, MODERN) == t.StringSchema()
    assert project(field, WITH_ICONS) is field


def test_simple_form_is_same_object() -> None:
    params = t.ElicitParams("Sure?", t.RequestedSchema({"sure": t.BooleanSchema(default=True)}))

    assert project(params, WITH_TITLES) is params


def test_lists_are_removed_from_older_form_results() -> None:
    result = t.ElicitResult("accept", {"one": "r", "many": ["r", "g"]})

    assert project(result, WITH_TITLES) == t.ElicitResult("accept", {"one": "r"})
    assert project(t.ElicitResult("decline"), WITH_TITLES) == t.ElicitResult("decline")


def test_missing_structured_content_stays_unset() -> None:
    assert project(t.CallToolResult([], None), WITH_AUDIO).structured_content is UNSET


@pytest.mark.parametrize("value", [5, [1], "a", None, True])
def test_non_object_content_is_wrapped_in_handshake_era(value: Any) -> None:
    result = t.CallToolResult([], value)

    assert project(result, Revision.V2026_07_28) is result
    for revision in (Revision.V2025_06_18, Revision.V2025_11_25):
        assert project(result, revision) == t.CallToolResult([], {"result": value})


@pytest.mark.row("T05")
def test_text_keeps_its_mime_type_in_every_revision() -> None:
    text = t.TextContent("{}", mime_type="application/json")

    assert all(project(text, revision) is text for revision in Revision)
