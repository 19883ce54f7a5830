"""Lenient decoding: accept the shapes of the founding documents in addition to those of the specification.

`read` decodes by the specification first, so peers that follow it pay nothing. Only JSON that does not fit is rewritten
by the function in `REWRITES` for its type, and decoded again. A rewrite never changes JSON that fits, and none of these
shapes is ever sent.

Two members fit without a rewrite and are declared on their types: `cursor` of a page (`PaginatedResult`) and `metadata`
of an updated resource (`ResourceUpdatedParams`).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar, cast

from msgspec import Raw

from trunkline.protocol import types as t
from trunkline.wire import codec

__all__ = ["REWRITES", "read", "read_rewritten", "read_task", "read_task_result"]

T = TypeVar("T")
Object = dict[str, Any]
Source = bytes | Raw | codec.DecodedJson
Rewrite = Callable[[Any, Any], Any]
"""(JSON value, params of the answered request, for a result) -> the rewritten value."""

_SAMPLING_OPTIONS: Final = ("maxTokens", "temperature", "stopSequences")
_CONTEXTS: Final = {"this_request": "thisServer", "this_server": "thisServer", "all_servers": "allServers"}
_STATUSES: Final = {"pending": "working", "processing": "working"}
_UNKNOWN_TIME: Final = ""  # task notifications have none


def read(kind: type[T], source: Source, request_params: Any = None) -> T:
    """Decode JSON as `kind`. `request_params` are the params of the request that a result answers.

    Raise the `DecodeError` of the specification's type if no known shape fits.
    """
    try:
        return _decoder(kind)(source)
    except codec.DecodeError:
        found = read_rewritten(kind, source, request_params)
        if found is None:
            raise
        return found


def read_rewritten(kind: type[T], source: Source, request_params: Any = None) -> T | None:
    """Decode JSON that does not fit `kind` directly; return None if no other known shape fits."""
    rewrite = REWRITES.get(kind)
    return None if rewrite is None else _rewritten(kind, source, rewrite, request_params)


def read_task(kind: type[T], source: Source) -> T | None:
    """Decode a task of the founding documents, alone or as the member `task`, as `kind`; None if it does not fit."""
    return _rewritten(kind, source, lambda value, _: _task(_object(_object(value).get("task", value))), None)


def read_task_result(source: Source) -> t.CallToolResult:
    """Decode the result of a task, which the founding documents nest in the member `result`. Raise as `read` does."""
    try:
        return read(t.CallToolResult, source)
    except codec.DecodeError:
        found = _rewritten(t.CallToolResult, source, lambda value, _: _object(value).get("result"), None)
        if found is None:
            raise
        return found


def _rewritten(kind: type[T], source: Source, rewrite: Rewrite, request_params: Any) -> T | None:
    try:
        return _decoder(kind)(codec.to_json(rewrite(_read_any(source), request_params)))
    except (codec.DecodeError, RecursionError):
        return None


@cache
def _decoder(kind: type[T]) -> Callable[[Source], T]:
    return codec.decoder(kind)


_read_any: Final[Callable[[Any], Any]] = codec.decoder(cast("type[Any]", object))


def _object(value: Any) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


def _each(value: Any, rewrite: Callable[[Object], Any]) -> Any:
    """Rewrite the objects in a list; leave other values unchanged."""
    if not isinstance(value, list):
        return value
    items = cast("list[Any]", value)
    return [rewrite(cast("Object", item)) if isinstance(item, dict) else item for item in items]


# --- requests and notifications -------------------------------------------------------------------


def _complete_params(value: Any, _: Any) -> Any:
    """Convert context arguments of any JSON type to strings."""
    context = _object(_object(value).get("context"))
    arguments = {name: _text(argument) for name, argument in _object(context.get("arguments")).items()}
    return {**_object(value), "context": {**context, "arguments": arguments}}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else codec.to_json(value).decode()


def _sampling_params(value: Any, _: Any) -> Any:
    """Move `maxTokens`, `temperature` and `stopSequences` out of `modelPreferences`."""
    members = _object(value)
    preferences = _object(members.get("modelPreferences"))
    options = {name: preferences[name] for name in _SAMPLING_OPTIONS if name in preferences}
    context = _CONTEXTS.get(str(members.get("includedContext")))
    return {**({} if context is None else {"includeContext": context}), **options, **members}


def _log_message(value: Any, _: Any) -> Any:
    """Convert a message with role and content to level and data."""
    content = _object(value).get("content")
    return {"level": "info", "data": _object(content).get("text", content)} if content is not None else value


def _task_status(value: Any, _: Any) -> Any:
    return _task(_object(value))


# --- results --------------------------------------------------------------------------------------


def _empty(value: Any, _: Any) -> Any:
    """Convert a null result to an empty object."""
    return {} if value is None else value


def _contents(value: Any, request_params: Any) -> Any:
    """Convert resource contents with `type` and `data`, like content blocks, and add the requested URI."""

    def rewrite(contents: Object) -> Object:
        if request_params is None or "type" not in contents:
            return contents
        blob = {"blob": contents["data"]} if "data" in contents else {}
        return {"uri": request_params.uri, **blob, **contents}

    return {**_object(value), "contents": _each(_object(value).get("contents"), rewrite)}


def _completion(value: Any, _: Any) -> Any:
    """Convert labelled proposals in `completions` to values."""
    members = _object(value)
    values = _each(members.get("completions"), lambda proposal: proposal.get("value"))
    counts = {name: members[name] for name in ("total", "hasMore") if name in members}
    return {**members, "completion": {"values": values, **counts}}


def _message_result(value: Any, _: Any) -> Any:
    """Add the missing role of a sampled message."""
    return {"role": "assistant", **_object(value)}


def _tools(value: Any, _: Any) -> Any:
    """Add a schema to tools without one: any arguments."""
    tools = _each(_object(value).get("tools"), lambda tool: {"inputSchema": {"type": "object"}, **tool})
    return {**_object(value), "tools": tools}


def _call_result(value: Any, _: Any) -> Any:
    return {**_object(value), "content": _each(_object(value).get("content"), _block)}


def _prompt(value: Any, _: Any) -> Any:
    """Change the role `system` to `user`: the specification has no other role that speaks to the model."""

    def rewrite(message: Object) -> Object:
        role = "user" if message.get("role") == "system" else message.get("role")
        return {**message, "role": role, "content": _block(_object(message.get("content")))}

    return {**_object(value), "messages": _each(_object(value).get("messages"), rewrite)}


def _block(block: Object) -> Object:
    """Rename the content type `resource/link` to `resource_link`."""
    return (
        {"name": block.get("uri"), **block, "type": "resource_link"} if block.get("type") == "resource/link" else block
    )


def _task_list(value: Any, _: Any) -> Any:
    return {**_object(value), "tasks": _each(_object(value).get("tasks"), _task)}


def _task(task: Object) -> Object:
    """Convert the status names and the millisecond timestamps of a task."""
    status: Any = task.get("status")
    return {
        **task,
        "status": _STATUSES.get(status, status) if isinstance(status, str) else status,
        "createdAt": _iso(task.get("createdAt")),
        "lastUpdatedAt": _iso(task.get("updatedAt", task.get("lastUpdatedAt"))),
        "ttl": task.get("ttl"),
    }


def _iso(milliseconds: Any) -> Any:
    if milliseconds is None:
        return _UNKNOWN_TIME
    if not isinstance(milliseconds, int | float):
        return milliseconds
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the range of datetime
        return _UNKNOWN_TIME
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


REWRITES: Final[Mapping[type[Any], Rewrite]] = {
    t.CompleteParams: _complete_params,
    t.CreateMessageParams: _sampling_params,
    t.LoggingMessageParams: _log_message,
    t.TaskStatusParams: _task_status,
    t.Empty: _empty,
    t.ReadResourceResult: _contents,
    t.CompleteResult: _completion,
    t.CreateMessageResult: _message_result,
    t.ListToolsResult: _tools,
    t.CallToolResult: _call_result,
    t.GetPromptResult: _prompt,
    t.ListTasksResult: _task_list,
}
"""The rewrite of each type that some peers send in another shape."""
