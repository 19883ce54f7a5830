"""Shapes of the founding documents: the messages that a profile sends in place of those of the specification.

This is the counterpart of `lenient`, which accepts these shapes from any peer. A value is first reduced to the revision
of the session, as by default, and then rewritten by the function in `RESULTS` or `PARAMS` for its type. Types without a
row have the same shape in both.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import Raw, Struct

from trunkline.protocol import types as t
from trunkline.protocol.meta import TOOL_MEMBERS
from trunkline.protocol.projection import project
from trunkline.protocol.revisions import Revision
from trunkline.wire import codec

__all__ = ["PARAMS", "RESULTS", "shape_params", "shape_result"]

Object = dict[str, Any]
Rewrite = Callable[[Object, Any, str | None], Object]
"""(JSON object, the value before it was reduced to the revision, target of the answered request) -> the new object."""

_read_object: Final = codec.json_decoder(dict[str, Any])


def shape_result(result: Any, revision: Revision, target: str | None = None) -> Any:
    """Return a result in the shape of the founding documents. `target` is the name or URI that was requested."""
    return _shape(RESULTS, result, revision, target)


def shape_params(params: Any, revision: Revision) -> Any:
    """Return the params of a request in the shape of the founding documents."""
    return _shape(PARAMS, params, revision, None)


def _shape(table: "Mapping[type[Struct], Rewrite]", value: Any, revision: Revision, target: str | None) -> Any:
    reduced = project(value, revision)
    rewrite = next((table[base] for base in type(value).__mro__ if base in table), None)
    if rewrite is None:
        return reduced
    return Raw(codec.to_json(rewrite(_read_object(codec.to_json(reduced)), value, target)))


# --- lists ----------------------------------------------------------------------------------------


def _page(members: Object) -> Object:
    """Add the cursor under its other name."""
    return {**members, "cursor": members["nextCursor"]} if "nextCursor" in members else members


def _tools(members: Object, result: t.ListToolsResult, _: str | None) -> Object:
    return _page({**members, "tools": list(map(_tool, members["tools"], result.tools))})


def _tool(members: Object, tool: t.Tool) -> Object:
    """Move the members that only the founding documents have out of the metadata."""
    meta = tool.meta or {}
    own = {name: meta[key] for name, key in TOOL_MEMBERS.items() if key in meta}
    keys = frozenset(TOOL_MEMBERS.values())
    rest = {key: value for key, value in members.pop("_meta", {}).items() if key not in keys}
    return {**members, **own, **({"_meta": rest} if rest else {})}


def _resources(members: Object, result: t.ListResourcesResult, _: str | None) -> Object:
    return _page({**members, "resources": list(map(_resource, members["resources"], result.resources))})


def _resource(members: Object, resource: t.Resource) -> Object:
    """Move metadata and the time of the last change to the top level."""
    members.pop("_meta", None)
    annotations = members.pop("annotations", {})
    annotations.pop("lastModified", None)
    changed = None if resource.annotations is None else _milliseconds(resource.annotations.last_modified)
    return {
        **members,
        **({"annotations": annotations} if annotations else {}),
        "metadata": resource.meta or {},
        **({} if changed is None else {"lastModified": changed}),
    }


def _milliseconds(iso: str | None) -> int | None:
    """Return a time in milliseconds since 1970; None if it is no ISO 8601."""
    try:
        at = datetime.fromisoformat(iso or "")
    except ValueError:
        return None
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _templates(members: Object, _: Any, __: str | None) -> Object:
    return _page(members)


def _prompts(members: Object, _: Any, __: str | None) -> Object:
    """Say of each argument whether it is required."""
    for prompt in members["prompts"]:
        if "arguments" in prompt:
            prompt["arguments"] = [
                {**argument, "required": bool(argument.get("required"))} for argument in prompt["arguments"]
            ]
    return _page(members)


# --- contents -------------------------------------------------------------------------------------


def _contents(members: Object, _: Any, target: str | None) -> Object:
    return {**members, "contents": [_content(item, target) for item in members["contents"]]}


def _content(item: Object, target: str | None) -> Object:
    """Give contents a type, like a content block. Only contents of another resource than the requested one have a URI.
    The founding documents have no type for bytes other than images and audio: these stay."""
    kind = "text" if "text" in item else str(item.get("mimeType")).partition("/")[0]
    if kind not in _CONTENT_TYPES:
        return item
    if "blob" in item:
        item["data"] = item.pop("blob")
    if item["uri"] == target:
        del item["uri"]
    return {"type": kind, **item}


def _call(members: Object, _: Any, __: str | None) -> Object:
    return {**members, "content": list(map(_block, members["content"]))}


def _prompt(members: Object, _: Any, __: str | None) -> Object:
    messages = [{**message, "content": _block(message["content"])} for message in members["messages"]]
    return {**members, "messages": messages}


def _block(block: Object) -> Object:
    return {**block, "type": "resource/link"} if block["type"] == "resource_link" else block


_CONTENT_TYPES: Final = frozenset({"text", "image", "audio"})


# --- completion and sampling ----------------------------------------------------------------------


def _completion(members: Object, _: Any, __: str | None) -> Object:
    """Leave out the shape of the specification, if the other one is there: the reference decides."""
    return {name: value for name, value in members.items() if name != "completion" or "completions" not in members}


def _reference(members: Object, params: t.CompleteParams, _: str | None) -> Object:
    """Name the type of a reference without its prefix, and a template by its name. The context is in every revision."""
    ref, context = params.ref, params.context
    return {
        **members,
        "ref": {"type": ref.type.removeprefix("ref/"), "name": ref.name if ref.uri is None else ref.uri},
        **({} if context is None else {"context": {"arguments": context.arguments or {}}}),
    }


def _sampling(members: Object, _: Any, __: str | None) -> Object:
    """Move the options into the preferences."""
    options = {name: members.pop(name) for name in _SAMPLING_OPTIONS if name in members}
    context = members.pop("includeContext", None)
    return {
        **members,
        "modelPreferences": {**members.get("modelPreferences", {}), **options},
        **({} if context is None else {"includedContext": _CONTEXTS[context]}),
    }


_SAMPLING_OPTIONS: Final = ("maxTokens", "temperature", "stopSequences")
_CONTEXTS: Final = {"none": "none", "thisServer": "this_request", "allServers": "all_servers"}
_REASONS: Final = {
    "endTurn": "end_turn",
    "stopSequence": "stop_sequence",
    "maxTokens": "max_tokens",
    "toolUse": "tool_use",
}


def _message(members: Object, _: Any, __: str | None) -> Object:
    """Leave out the role, and make the content a list."""
    del members["role"]
    content, reason = members["content"], members.get("stopReason")
    blocks = cast("list[Any]", content if isinstance(content, list) else [content])
    return {**members, "content": blocks, **({} if reason is None else {"stopReason": _REASONS.get(reason, reason)})}


RESULTS: Final[Mapping[type[Struct], Rewrite]] = {
    t.ListToolsResult: _tools,
    t.ListResourcesResult: _resources,
    t.ListResourceTemplatesResult: _templates,
    t.ListPromptsResult: _prompts,
    t.ReadResourceResult: _contents,
    t.CallToolResult: _call,
    t.GetPromptResult: _prompt,
    t.CompleteResult: _completion,
    t.CreateMessageResult: _message,
}
"""The rewrite of each type of result; it also applies to derived types."""

PARAMS: Final[Mapping[type[Struct], Rewrite]] = {
    t.CompleteParams: _reference,
    t.CreateMessageParams: _sampling,
}
"""The rewrite of each type of params."""
