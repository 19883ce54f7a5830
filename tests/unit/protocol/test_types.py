"""The types against the official schemas, and their guarantees beyond them: that of 2025-11-25, and for the modern era,
that of 2026-07-28.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, get_args

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct, ValidationError
from msgspec.structs import fields
from tests.official import schema
from tests.unit.protocol.samples import BEYOND_THE_SCHEMA, samples

from trunkline.protocol import types as t

DEFINITIONS: dict[str, Any] = schema("2025-11-25")["$defs"]
MODERN_DEFINITIONS: dict[str, Any] = schema("2026-07-28")["$defs"]

PUBLIC = [getattr(t, name) for name in t.__all__]
STRUCTS = [value for value in PUBLIC if isinstance(value, type) and issubclass(value, Struct)]

# Unions without a tag are one type; every other type is one definition.
UNIONS = {
    t.ResourceContents: ["TextResourceContents", "BlobResourceContents"],
    t.Reference: ["PromptReference", "ResourceTemplateReference"],
    t.ElicitParams: ["ElicitRequestFormParams", "ElicitRequestURLParams"],
    t.StringSchema: [
        "StringSchema",
        "UntitledSingleSelectEnumSchema",
        "TitledSingleSelectEnumSchema",
        "LegacyTitledEnumSchema",
    ],
    t.MultiSelectEnumSchema: ["UntitledMultiSelectEnumSchema", "TitledMultiSelectEnumSchema"],
}
OTHER_NAMES = {t.Params: "RequestParams", t.IntegerSchema: "NumberSchema"}
OURS = {t.Wire, t.Item, t.Empty}  # base types, and the type without members
INSIDE_A_DEFINITION = {  # these have no name in the schema: the tests meet them below the types that have one
    *(t.RootsCapability, t.SamplingCapability, t.ElicitationCapability, t.ClientTasksCapability),
    *(t.ClientTaskRequests, t.SamplingTaskRequests, t.ElicitationTaskRequests),
    *(t.ToolsCapability, t.ResourcesCapability, t.PromptsCapability, t.ServerTasksCapability),
    *(t.ServerTaskRequests, t.ToolTaskRequests),
    *(t.CompletionArgument, t.CompletionContext, t.Completion),
    *(t.RequestedSchema, t.EnumItems, t.EnumOption),
}
MODERN = {  # types that only 2026-07-28 has, and their definitions there
    t.AskableParams: ["InputResponseRequestParams"],
    t.DiscoverResult: ["DiscoverResult"],
    t.InputRequest: ["CreateMessageRequest", "ListRootsRequest", "ElicitRequest"],
    t.InputRequiredResult: ["InputRequiredResult"],
    t.ListenParams: ["SubscriptionsListenRequestParams"],
    t.SubscriptionFilter: ["SubscriptionFilter"],
    t.SubscriptionsAcknowledgedParams: ["SubscriptionsAcknowledgedNotificationParams"],
}
# By the sender of a result; the envelope of a request is added in the same way.
PUT_ON = {"resultType", "ttlMs", "cacheScope"}
ANSWERS = {"inputResponses", "requestState"}
LATER = {  # of 2026-07-28
    t.ClientCapabilities: {"extensions"},
    t.ServerCapabilities: {"extensions"},
    t.CallToolParams: ANSWERS,
    t.GetPromptParams: ANSWERS,
    t.ReadResourceParams: ANSWERS,
}
NOT_TYPES = {
    *("BaseMetadata", "Icons", "ResourceContents", "NotificationParams"),  # others inherit their members
    *("Error", "URLElicitationRequiredError"),  # JSON-RPC's
    "GetTaskPayloadResult",  # any result at all
}
ERROR_DATA = {t.UrlElicitationRequired}
NAMED = [cls for cls in STRUCTS if cls not in OURS | INSIDE_A_DEFINITION | ERROR_DATA]


def definition_names(cls: type) -> list[str]:
    """The definitions that a type represents. Params are named after their method: `…RequestParams` is `…Params`."""
    stem = cls.__name__.removesuffix("Params")
    names = [OTHER_NAMES.get(cls), cls.__name__]
    if stem != cls.__name__:
        names += [f"{stem}RequestParams", f"{stem}NotificationParams"]
    return UNIONS.get(cls) or [name for name in names if name in DEFINITIONS][:1]


def shapes(cls: type) -> list[dict[str, Any]]:
    """The official shapes of a type: its definitions, or the params inside of its request or notification."""
    if cls in MODERN:
        return [modern(MODERN_DEFINITIONS[name]) for name in MODERN[cls]]
    named = [flat(DEFINITIONS[name]) for name in definition_names(cls)]
    if named:
        return named
    stem = cls.__name__.removesuffix("Params")
    message = DEFINITIONS.get(f"{stem}Request") or DEFINITIONS[f"{stem}Notification"]
    params = message["properties"]["params"]
    return [{**params, "properties": {"_meta": {}, **params["properties"]}}]


def flat(shape: dict[str, Any]) -> dict[str, Any]:
    """A shape with all shapes that it is composed of."""
    parts = [DEFINITIONS[part["$ref"].rsplit("/", 1)[1]] for part in shape.get("allOf", ())]
    return {
        "properties": {name: value for part in [shape, *parts] for name, value in part.get("properties", {}).items()},
        "required": [name for part in [shape, *parts] for name in part.get("required", ())],
    }


def modern(shape: dict[str, Any]) -> dict[str, Any]:
    """A shape of the modern era, without the members that are added on sending."""
    members, required = shape["properties"], shape.get("required", [])
    return {
        "properties": {name: value for name, value in members.items() if name not in PUT_ON},
        "required": [name for name in required if name not in {*PUT_ON, "_meta"}],
    }


def structs_in(annotation: Any) -> Iterator[type[Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        yield annotation
    for part in get_args(annotation):
        yield from structs_in(part)


def assert_same_members(cls: type[Struct], official: list[dict[str, Any]]) -> set[type[Struct]]:
    """Compare a type, and unnamed ones below it, with their shapes. Return the latter."""
    ours = {field.encode_name: field for field in fields(cls)}
    tag = {cls.__struct_config__.tag_field} - {None}
    beyond = BEYOND_THE_SCHEMA.get(cls, set()) | LATER.get(cls, set())
    assert {*ours, *tag} - beyond == {name for shape in official for name in shape["properties"]}, cls
    required = {name for name, field in ours.items() if field.required} | tag
    assert required == set.intersection(*(set(shape.get("required", ())) for shape in official)), cls
    return {
        visited
        for name, field in ours.items()
        if (inline := list(inline_objects(shape["properties"].get(name, {}) for shape in official)))
        for below in structs_in(field.type)
        for visited in {below, *assert_same_members(below, inline)}
    }


def inline_objects(official: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for shape in official:
        item = shape.get("items", shape)
        if item.get("properties"):
            yield item


@pytest.mark.parametrize("cls", NAMED)
def test_types_match_schema_members(cls: type[Struct]) -> None:
    assert assert_same_members(cls, shapes(cls)) <= INSIDE_A_DEFINITION


def test_nested_types_match_schema() -> None:
    assert set().union(*(assert_same_members(cls, shapes(cls)) for cls in NAMED)) == INSIDE_A_DEFINITION


def test_url_elicitation_error_data_matches_schema() -> None:
    _, specific = DEFINITIONS["URLElicitationRequiredError"]["properties"]["error"]["allOf"]

    assert_same_members(t.UrlElicitationRequired, [specific["properties"]["data"]])


def test_every_object_of_the_schema_has_a_type() -> None:
    envelopes = ("Request", "Notification")
    objects = {
        name
        for name, shape in DEFINITIONS.items()
        if (shape.get("type") == "object" or "allOf" in shape)
        and not name.endswith(envelopes)
        and not name.startswith("JSONRPC")
    }

    assert objects - NOT_TYPES <= {name for cls in STRUCTS if cls not in OURS for name in definition_names(cls)}


def test_every_modern_object_has_a_type() -> None:
    later = {
        name
        for name, shape in MODERN_DEFINITIONS.items()
        if name not in DEFINITIONS
        and shape.get("type") == "object"
        and not name.startswith("JSON")
        and not name.endswith(("Request", "Notification", "Response", "Error", "Meta", "MetaObject"))
    }
    sent_as = {name for names in MODERN.values() for name in names}

    assert later - sent_as == {
        "CacheableResult",  # whose members are added on sending
        "SubscriptionsListenResult",  # without members of its own
        "InputRequests",  # and these two are mappings
        "InputResponses",
    }


@pytest.mark.parametrize(
    ("choices", "definition"),
    [
        (t.Role, "Role"),
        (t.LoggingLevel, "LoggingLevel"),
        (t.TaskStatus, "TaskStatus"),
    ],
)
def test_choices_are_those_of_the_schema(choices: Any, definition: str) -> None:
    assert sorted(get_args(choices)) == DEFINITIONS[definition]["enum"]


@pytest.mark.parametrize(
    ("union", "definition"),
    [
        (t.ContentBlock, "ContentBlock"),
        (t.SamplingBlock, "SamplingMessageContentBlock"),
    ],
)
def test_unions_have_the_branches_of_the_schema(union: Any, definition: str) -> None:
    branches = {branch["$ref"].rsplit("/", 1)[1] for branch in DEFINITIONS[definition]["anyOf"]}

    assert {cls.__name__ for cls in get_args(union)} == branches


@pytest.mark.parametrize("cls", [cls for cls in STRUCTS if cls is not t.Wire])
def test_values_survive_a_round_trip(cls: type[Struct]) -> None:
    for sample in samples(cls):
        assert msgspec.json.decode(msgspec.json.encode(sample), type=cls) == sample


def test_names_are_imported_from_their_modules() -> None:
    for module, names in t._MODULES.items():
        found = import_module(f"{t.__name__}.{module}")
        assert [getattr(t, name) is getattr(found, name) for name in names] == [True] * len(names)
    assert sorted(t.__all__) == sorted(name for names in t._MODULES.values() for name in names)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Unknown'"):
        _ = t.Unknown


def test_every_public_name_has_docstring() -> None:
    assert [cls for cls in STRUCTS if not cls.__dict__.get("__doc__")] == []


def test_unknown_members_are_ignored() -> None:
    assert msgspec.json.decode(b'{"name":"a","later":1}', type=t.GetPromptParams) == t.GetPromptParams("a")


# content


def test_text_content_needs_text_only() -> None:
    assert msgspec.json.encode(t.TextContent("hi")) == b'{"type":"text","text":"hi"}'


@pytest.mark.row("T05")
def test_text_keeps_its_mime_type() -> None:
    text = t.TextContent('{"a":1}', mime_type="application/json")
    encoded = msgspec.json.encode(text)

    assert b'"mimeType":"application/json"' in encoded
    assert msgspec.json.decode(encoded, type=t.ContentBlock) == text


@pytest.mark.row("R06")
@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (t.TextContent("a"), "text"),
        (t.ImageContent("eA==", "image/png"), "image"),
        (t.AudioContent("eA==", "audio/wav"), "audio"),
        (t.ResourceLink("file:///a", "a"), "resource_link"),
        (t.EmbeddedResource(t.ResourceContents("file:///a", text="a")), "resource"),
    ],
)
def test_content_has_type_tag(block: t.ContentBlock, kind: str) -> None:
    assert msgspec.json.decode(msgspec.json.encode(block))["type"] == kind


@pytest.mark.row("Y06")
@pytest.mark.parametrize(
    "mime_type",
    [
        *("text/plain", "text/markdown", "application/json", "image/png", "image/jpeg", "image/gif"),
        *("audio/mp3", "audio/wav", "audio/aac", "application/vnd.trunkline.custom"),
    ],
)
def test_any_mime_type_is_accepted(mime_type: str) -> None:
    contents = t.ResourceContents("file:///a", mime_type, blob="eA==")

    assert msgspec.json.decode(msgspec.json.encode(contents), type=t.ResourceContents).mime_type == mime_type


def test_contents_type_is_read_but_never_written() -> None:
    contents = msgspec.json.decode(b'{"type":"text","uri":"file:///a","text":"a"}', type=t.ResourceContents)

    assert msgspec.json.encode(contents) == b'{"uri":"file:///a","text":"a"}'


@pytest.mark.row("Y08")
def test_annotations_survive_a_round_trip() -> None:
    text = t.TextContent("a", t.Annotations(audience=["user", "assistant"], priority=0.5))
    encoded = msgspec.json.encode(text)

    assert encoded == b'{"type":"text","text":"a","annotations":{"audience":["user","assistant"],"priority":0.5}}'
    assert msgspec.json.encode(msgspec.json.decode(encoded, type=t.TextContent)) == encoded


@pytest.mark.row("Y08")
@pytest.mark.parametrize("priority", [b"1.1", b"-0.1"])
def test_annotation_priority_is_between_0_and_1(priority: bytes) -> None:
    with pytest.raises(ValidationError, match="priority"):
        msgspec.json.decode(b'{"priority":' + priority + b"}", type=t.Annotations)


@pytest.mark.row("R03", "R04")
def test_resource_has_all_members() -> None:
    resource = t.Resource(
        "file:///a",
        "a",
        size=3,
        annotations=t.Annotations(["user"], 0.5, "2025-01-12T15:00:58Z"),
        meta={"trunkline/owner": "me"},
    )

    assert msgspec.json.encode(resource) == (
        b'{"uri":"file:///a","name":"a","size":3,"annotations":{"audience":["user"],"priority":0.5,'
        b'"lastModified":"2025-01-12T15:00:58Z"},"_meta":{"trunkline/owner":"me"}}'
    )


# tools


@pytest.mark.row("T04")
def test_content_and_is_error_are_always_present() -> None:
    assert msgspec.json.encode(t.CallToolResult([])) == b'{"content":[],"isError":false}'


def test_null_structured_content_differs_from_missing() -> None:
    assert t.CallToolResult([]).structured_content is UNSET
    assert b'"structuredContent":null' in msgspec.json.encode(t.CallToolResult([], None))


def test_call_without_arguments_has_empty_arguments() -> None:
    params = msgspec.json.decode(b'{"name":"a"}', type=t.CallToolParams)

    assert params.arguments == Raw(b"{}")
    assert msgspec.json.encode(params) == b'{"name":"a"}'


def test_arguments_stay_raw() -> None:
    params = msgspec.json.decode(b'{"name":"a","arguments":{"x": 1.0}}', type=t.CallToolParams)

    assert bytes(params.arguments) == b'{"x": 1.0}'


@pytest.mark.row("T02")
def test_additional_members_go_into_meta() -> None:
    tool = t.Tool("a", {"type": "object"}, meta={"trunkline/version": "2", "trunkline/deprecated": True})

    assert msgspec.json.encode(tool) == (
        b'{"name":"a","inputSchema":{"type":"object"},"_meta":{"trunkline/version":"2","trunkline/deprecated":true}}'
    )


@pytest.mark.row("Y07")
def test_founding_types_have_their_fields() -> None:
    members = {cls: {field.name for field in fields(cls)} for cls in STRUCTS}

    assert members[t.Resource] >= {"uri", "name", "description", "mime_type", "annotations"}
    assert members[t.Tool] >= {"name", "description", "input_schema"}
    assert members[t.Prompt] >= {"name", "description", "arguments"}
    assert members[t.PromptArgument] >= {"name", "description", "required"}
    assert members[t.Task] >= {"task_id", "status", "created_at", "last_updated_at"}


# pagination


def test_empty_cursor_is_a_cursor() -> None:
    assert msgspec.json.encode(t.ListToolsResult([], next_cursor="")) == b'{"tools":[],"nextCursor":""}'


def test_page_size_request_is_accepted() -> None:
    assert msgspec.json.decode(b'{"limit":10}', type=t.PaginatedParams).limit == 10


# lifecycle


@pytest.mark.row("L19")
def test_client_capabilities_ignore_extra_keys() -> None:
    declared = b'{"roots":{"listChanged":true},"sampling":{},"tools":{"listChanged":true},"experimental":{"x":{}}}'

    assert msgspec.json.decode(declared, type=t.ClientCapabilities) == t.ClientCapabilities(
        roots=t.RootsCapability(list_changed=True), sampling=t.SamplingCapability(), experimental={"x": {}}
    )


@pytest.mark.row("L21")
def test_server_capabilities_match_specification() -> None:
    capabilities = t.ServerCapabilities(
        tools=t.ToolsCapability(list_changed=True),
        resources=t.ResourcesCapability(subscribe=True, list_changed=True),
        prompts=t.PromptsCapability(),
        logging={},
        completions={},
        experimental={"x": {}},
    )

    assert msgspec.json.encode(capabilities) == (
        b'{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{},'
        b'"logging":{},"completions":{},"experimental":{"x":{}}}'
    )


# logging


def test_levels_are_in_order_of_severity() -> None:
    assert t.LOGGING_LEVELS[0] == "debug"
    assert t.LOGGING_LEVELS.index("error") < t.LOGGING_LEVELS.index("critical") < t.LOGGING_LEVELS.index("emergency")


# sampling


def create_message(more: str) -> t.CreateMessageParams:
    return msgspec.json.decode(f'{{"messages":[],{more}}}', type=t.CreateMessageParams)


@pytest.mark.row("S04")
@pytest.mark.parametrize("name", ["costPriority", "speedPriority", "intelligencePriority"])
@pytest.mark.parametrize("value", ["1.1", "-0.1"])
def test_model_priorities_are_between_0_and_1(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name):
        create_message(f'"maxTokens":1,"modelPreferences":{{"{name}":{value}}}')


@pytest.mark.row("S05")
@pytest.mark.parametrize("value", ["2.1", "-0.1"])
def test_temperature_is_between_0_and_2(value: str) -> None:
    with pytest.raises(ValidationError, match="temperature"):
        create_message(f'"maxTokens":1,"temperature":{value}')


@pytest.mark.row("S06")
def test_max_tokens_is_a_number_and_stop_sequences_are_ordered() -> None:
    with pytest.raises(ValidationError, match="maxTokens"):
        create_message('"maxTokens":"10"')
    assert create_message('"maxTokens":10,"stopSequences":["b","a"]').stop_sequences == ["b", "a"]


@pytest.mark.row("S08")
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("end_turn", "endTurn"),
        ("end_of_turn", "endTurn"),
        ("max_tokens", "maxTokens"),
        ("stop_sequence", "stopSequence"),
        ("tool_use", "toolUse"),
        ("maxTokens", "maxTokens"),
        ("content_filter", "content_filter"),
    ],
)
def test_stop_reasons_are_normalized(said: str, reason: str) -> None:
    assert t.CreateMessageResult("assistant", t.TextContent("x"), "m", said).stop_reason == reason


def test_founding_sampling_reply_is_decoded() -> None:
    reply = (
        b'{"role":"assistant","content":{"type":"text","text":"The capital of France is Paris."},'
        b'"model":"claude-3-sonnet-20240229","stopReason":"end_turn"}'
    )
    result = msgspec.json.decode(reply, type=t.CreateMessageResult)
    assert (result.model, result.stop_reason) == ("claude-3-sonnet-20240229", "endTurn")


def test_message_has_one_or_several_blocks() -> None:
    block = '{"type":"text","text":"a"}'
    for content in (block, f"[{block}]"):
        answer = f'{{"role":"assistant","content":{content},"model":"m","stopReason":"end_turn"}}'
        result = msgspec.json.decode(answer, type=t.CreateMessageResult)

        assert result.content in (t.TextContent("a"), [t.TextContent("a")])
        assert result.stop_reason == "endTurn"


# elicitation


IMAGE = t.ImageContent("aGk=", "image/png")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (t.TextContent("hello"), "hello"),
        ([t.TextContent("hello"), IMAGE, t.TextContent("again")], "hello\nagain"),
        (IMAGE, ""),
        ([], ""),
    ],
)
def test_message_text_joins_its_text_blocks(content: Any, text: str) -> None:
    assert t.SamplingMessage("user", content).text == text
    assert t.CreateMessageResult("assistant", content, "m").text == text


def test_prompt_message_has_text() -> None:
    assert t.PromptMessage("user", t.TextContent("hello")).text == "hello"
    assert t.PromptMessage("user", IMAGE).text == ""


def test_elicitation_without_mode_is_a_form() -> None:
    form = t.ElicitParams("Who?", t.RequestedSchema({"name": t.StringSchema()}))
    encoded = msgspec.json.encode(form)

    assert encoded == (
        b'{"message":"Who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}'
    )
    assert msgspec.json.decode(encoded, type=t.ElicitParams).mode == "form"


# tasks


def test_task_without_ttl_has_null() -> None:
    task = t.Task("1", "working", "2025-11-25T10:30:00Z", "2025-11-25T10:30:00Z", None)

    assert b'"ttl":null' in msgspec.json.encode(task)
