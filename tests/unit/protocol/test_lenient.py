"""Lenient decoding: accepted shapes beyond the specification's, and rejected ones."""

import json
from typing import Any

import pytest
from msgspec import Struct

from trunkline.protocol import lenient
from trunkline.protocol import types as t
from trunkline.wire import codec

TEXT = {"type": "text", "text": "hello"}
USER = {"role": "user", "content": TEXT}


def source(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("kind", "sent", "read"),
    [
        (
            t.CompleteParams,
            {
                "ref": {"type": "tool", "name": "a"},
                "argument": {"name": "b", "value": "c"},
                "context": {"arguments": {"n": 10, "yes": True, "list": [1], "text": "t"}},
            },
            {"ref": "*", "context": t.CompletionContext({"n": "10", "yes": "true", "list": "[1]", "text": "t"})},
        ),
        (
            t.CreateMessageParams,
            {"messages": [USER], "modelPreferences": {"maxTokens": 5}, "includedContext": "all_servers"},
            {"max_tokens": 5, "include_context": "allServers", "temperature": None},
        ),
        (
            t.CreateMessageParams,
            {"messages": [USER], "modelPreferences": {"maxTokens": 5}, "includedContext": "other"},
            {"include_context": None},
        ),
        (t.LoggingMessageParams, {"role": "user", "content": [1, 2]}, {"level": "info", "data": [1, 2]}),
        (
            t.TaskStatusParams,
            {"taskId": "1", "status": "pending"},
            {"status": "working", "created_at": "", "last_updated_at": "", "ttl": None},
        ),
        (t.Empty, None, {}),
        (t.CompleteResult, {"completions": ["a", {"value": "b"}]}, {"completion": t.Completion(["a", "b"])}),
        (t.CreateMessageResult, {"content": TEXT, "model": "m"}, {"role": "assistant"}),
        (t.ListToolsResult, {"tools": [{"name": "a"}]}, {"tools": [t.Tool("a", {"type": "object"})]}),
        (
            t.CallToolResult,
            {"content": [TEXT, {"type": "resource/link", "uri": "a://b"}]},
            {"content": [t.TextContent("hello"), t.ResourceLink("a://b", "a://b")]},
        ),
        (
            t.GetPromptResult,
            {"messages": [{"role": "system", "content": {"type": "resource/link", "uri": "a://b", "name": "B"}}]},
            {"messages": [t.PromptMessage("user", t.ResourceLink("a://b", "B"))]},
        ),
        (
            t.ListTasksResult,
            {"tasks": [{"taskId": "1", "status": "failed", "createdAt": 1e300, "lastUpdatedAt": "now", "ttl": 1}]},
            {"tasks": [t.Task("1", "failed", "", "now", 1)]},
        ),
    ],
)
def test_founding_shape_is_read_as_specification_type(kind: type[Struct], sent: Any, read: Any) -> None:
    with pytest.raises(codec.DecodeError):
        codec.decoder(kind)(source(sent))
    found = lenient.read(kind, source(sent))
    assert type(found) is kind
    assert {name: "*" if value == "*" else getattr(found, name) for name, value in read.items()} == read


def test_contents_without_uri_get_requested_uri() -> None:
    sent = source({"contents": [{"type": "image", "data": "eA=="}, {"uri": "a://other", "text": "x"}]})
    asked = t.ReadResourceParams(uri="a://b")
    assert lenient.read(t.ReadResourceResult, sent, asked).contents == [
        t.ResourceContents("a://b", blob="eA=="),
        t.ResourceContents("a://other", text="x"),
    ]
    with pytest.raises(codec.DecodeError):
        lenient.read(t.ReadResourceResult, sent)


@pytest.mark.parametrize("kind", lenient.REWRITES)
@pytest.mark.parametrize("sent", [1, "text", []])
def test_unknown_shape_raises_specification_error(kind: type[Struct], sent: Any) -> None:
    with pytest.raises(codec.DecodeError) as strict:
        codec.decoder(kind)(source(sent))
    with pytest.raises(codec.DecodeError) as raised:
        lenient.read(kind, source(sent))
    assert str(raised.value) == str(strict.value)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (t.CallToolResult, {"content": "text"}),
        (t.CompleteResult, {"completions": "text"}),
        (t.ListTasksResult, {"tasks": [{"taskId": 1, "status": 2, "createdAt": {}}]}),
        (t.LoggingMessageParams, {"role": "user"}),
    ],
)
def test_members_of_wrong_type_are_refused(kind: type[Struct], sent: Any) -> None:
    with pytest.raises(codec.DecodeError):
        lenient.read(kind, source(sent))


def test_type_without_rewrite_is_read_by_specification() -> None:
    assert lenient.read_rewritten(t.ListRootsResult, b"null") is None
    with pytest.raises(codec.DecodeError):
        lenient.read(t.ListRootsResult, b"null")


def test_deeply_nested_json_is_refused() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    assert lenient.read_rewritten(t.CallToolResult, deep) is None


def test_task_result_may_be_nested() -> None:
    result = {"content": [TEXT]}
    assert lenient.read_task_result(source(result)) == lenient.read_task_result(source({"result": result}))
    with pytest.raises(codec.DecodeError):
        lenient.read_task_result(source({"result": "text"}))


def test_task_may_be_nested() -> None:
    task = {"taskId": "1", "status": "processing", "createdAt": 1640995200000, "updatedAt": 1640995200500}
    read = t.Task("1", "working", "2022-01-01T00:00:00.000Z", "2022-01-01T00:00:00.500Z", None)
    assert lenient.read_task(t.Task, source({"task": task})) == lenient.read_task(t.Task, source(task)) == read
    assert lenient.read_task(t.Task, source({"task": 1})) is None


@pytest.mark.parametrize(
    ("sent", "cursor"),
    [
        ({"cursor": "a"}, "a"),
        ({"cursor": ""}, ""),
        ({"cursor": "a", "nextCursor": "b"}, "b"),
        ({"cursor": 1}, None),
        ({"cursor": None}, None),
        ({}, None),
    ],
)
def test_next_cursor_may_be_named_cursor(sent: dict[str, Any], cursor: str | None) -> None:
    page = lenient.read(t.ListToolsResult, source({"tools": [], **sent}))
    assert page.next_cursor == cursor
    assert b'"cursor"' not in codec.to_json(page)
