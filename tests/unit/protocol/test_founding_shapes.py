"""Shapes of the founding documents, where the examples do not reach."""

from typing import Any

import pytest
from msgspec import Raw

from trunkline.protocol import types as t
from trunkline.protocol.founding_shapes import PARAMS, RESULTS, shape_params, shape_result
from trunkline.protocol.lenient import read
from trunkline.protocol.revisions import HANDSHAKE, NEWEST_HANDSHAKE, Revision
from trunkline.wire.codec import json_decoder

decode = json_decoder(dict[str, Any])


def shaped(result: Any, target: str | None = None) -> dict[str, Any]:
    return decode(shape_result(result, NEWEST_HANDSHAKE, target))


@pytest.mark.row("R03e")
@pytest.mark.parametrize(
    ("changed", "milliseconds"),
    [
        ("2022-01-01T00:00:00Z", 1640995200000),
        ("2022-01-01T01:00:00+01:00", 1640995200000),
        ("2022-01-01T00:00:00", 1640995200000),
        ("yesterday", None),
        (None, None),
    ],
)
def test_time_of_a_change_is_in_milliseconds(changed: str | None, milliseconds: int | None) -> None:
    resource = t.Resource("doc://a", "a", annotations=t.Annotations(last_modified=changed))
    (found,) = shaped(t.ListResourcesResult([resource]))["resources"]
    assert found.get("lastModified") == milliseconds
    assert "annotations" not in found


def test_prompt_without_arguments_gets_none() -> None:
    assert shaped(t.ListPromptsResult([t.Prompt("a")])) == {"prompts": [{"name": "a"}]}


@pytest.mark.row("X22e")
def test_contents_of_another_resource_keep_their_uri() -> None:
    contents = [t.ResourceContents("doc://a", text="x"), t.ResourceContents("doc://b", "audio/wav", blob="eA==")]
    assert shaped(t.ReadResourceResult(contents), "doc://a")["contents"] == [
        {"type": "text", "text": "x"},
        {"type": "audio", "uri": "doc://b", "data": "eA==", "mimeType": "audio/wav"},
    ]


def test_results_without_a_row_are_only_reduced_to_the_revision() -> None:
    empty = t.Empty()
    assert shape_result(empty, Revision.V2024_11_05) is empty
    assert shape_params(empty, Revision.V2024_11_05) is empty


@pytest.mark.row("X16e")
def test_sampling_without_context_or_reason_has_neither() -> None:
    message = t.CreateMessageResult("assistant", [t.TextContent("x")], "m", "of its own")
    assert shaped(message)["stopReason"] == "of its own"
    assert "stopReason" not in shaped(t.CreateMessageResult("assistant", t.TextContent("x"), "m"))
    params = t.CreateMessageParams([], 5, model_preferences=t.ModelPreferences(cost_priority=0.5))
    assert decode(shape_params(params, NEWEST_HANDSHAKE)) == {
        "messages": [],
        "modelPreferences": {"costPriority": 0.5, "maxTokens": 5},
    }


VALUES = [
    t.ListToolsResult([t.Tool("a", {"type": "object"})], next_cursor="c"),
    t.ListPromptsResult([t.Prompt("a", arguments=[t.PromptArgument("b", required=True)])], next_cursor="c"),
    t.ReadResourceResult([t.ResourceContents("doc://a", "text/plain", "x")]),
    t.CallToolResult([t.ResourceLink("doc://a", "a")]),
    t.GetPromptResult([t.PromptMessage("user", t.ResourceLink("doc://a", "a"))]),
    t.CreateMessageResult("assistant", [t.TextContent("x")], "m", "endTurn"),
    t.CreateMessageParams([], 5, include_context="thisServer", temperature=1.0, model_preferences=t.ModelPreferences()),
    t.CompleteParams(t.Reference("ref/prompt", "a"), t.CompletionArgument("b", "c"), t.CompletionContext({"d": "e"})),
]


@pytest.mark.row("X37e")
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_reader_of_the_specification_accepts_every_shape(value: Any) -> None:
    """`lenient` reads back what the profile sends."""
    shape = shape_params if type(value) in PARAMS else shape_result
    options = {} if shape is shape_params else {"target": "doc://a"}
    sent = shape(value, NEWEST_HANDSHAKE, **options)
    assert isinstance(sent, Raw)
    found = read(type(value), sent, t.ReadResourceParams(uri="doc://a"))
    if isinstance(value, t.CompleteParams):  # the server finds a reference without prefix, too
        value.ref.type = "prompt"
    if isinstance(value, t.ListPromptsResult):
        assert found.next_cursor == "c"
    assert found == value


def test_tables_have_types_of_the_specification() -> None:
    assert all(issubclass(kind, t.Wire) for kind in (*RESULTS, *PARAMS))
    assert all(decode(shape_result(t.ListToolsResult([]), revision)) == {"tools": []} for revision in HANDSHAKE)


@pytest.mark.row("X16e")
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("endTurn", "end_turn"),
        ("stopSequence", "stop_sequence"),
        ("maxTokens", "max_tokens"),
        ("toolUse", "tool_use"),
        ("refused", "refused"),
    ],
)
def test_reason_to_stop_is_in_the_words_of_the_documents(reason: str, expected: str) -> None:
    message = t.CreateMessageResult("assistant", t.TextContent("hello"), "claude", reason)
    assert shaped(message)["stopReason"] == expected


@pytest.mark.row("X16e")
@pytest.mark.parametrize(
    ("context", "expected"), [("none", "none"), ("thisServer", "this_request"), ("allServers", "all_servers")]
)
def test_included_context_is_in_the_words_of_the_documents(context: Any, expected: str) -> None:
    params = t.CreateMessageParams([], 10, include_context=context)
    assert decode(shape_params(params, NEWEST_HANDSHAKE))["includedContext"] == expected
