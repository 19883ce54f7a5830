"""Checks for messages of the tasks extension, which the schema of 2026-07-28 lacks; written from the extension's text."""

from functools import cache
from typing import Any

import jsonschema_rs

METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks"})

_TIME = {"type": "string", "format": "date-time"}
_TASK = {
    "taskId": {"type": "string"},
    "status": {"enum": ["working", "input_required", "completed", "failed", "cancelled"]},
    "createdAt": _TIME,
    "lastUpdatedAt": _TIME,
    "ttlMs": {"type": ["integer", "null"], "minimum": 0},
    "statusMessage": {"type": "string"},
    "pollIntervalMs": {"type": "integer", "minimum": 1},
}
_NEEDED = ["taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"]
_META = {"_meta": {"type": "object"}}
_CONTENTS = {  # by the status that requires it
    "input_required": ("inputRequests", {"type": "object", "minProperties": 1}),
    "completed": ("result", {"type": "object"}),
    "failed": ("error", {"type": "object", "required": ["code", "message"]}),
}


def _shape(kind: str | None, members: dict[str, Any], needed: list[str]) -> dict[str, Any]:
    marked = {} if kind is None else {"resultType": {"const": kind}}
    return {
        "type": "object",
        "properties": {**members, **_META, **marked},
        "required": [*needed, *marked],
        "additionalProperties": False,
    }


def _detailed(kind: str | None) -> dict[str, Any]:
    return {
        "oneOf": [
            _shape(
                kind,
                {**_TASK, "status": {"const": status}, **dict([_CONTENTS[status]] if status in _CONTENTS else [])},
                [*_NEEDED, *([_CONTENTS[status][0]] if status in _CONTENTS else [])],
            )
            for status in _TASK["status"]["enum"]
        ]
    }


_SHAPES = {
    "created": _shape("task", _TASK, _NEEDED),
    "tasks/get": _detailed("complete"),
    "tasks/update": _shape("complete", {}, []),
    "tasks/cancel": _shape("complete", {}, []),
    "notifications/tasks": _detailed(None),
}
_PARAMS = {
    "tasks/get": _shape(None, {"taskId": {"type": "string"}}, ["taskId"]),
    "tasks/update": _shape(
        None, {"taskId": {"type": "string"}, "inputResponses": {"type": "object"}}, ["taskId", "inputResponses"]
    ),
    "tasks/cancel": _shape(None, {"taskId": {"type": "string"}}, ["taskId"]),
    "notifications/tasks": _SHAPES["notifications/tasks"],
}


def belongs_to_extension(method: str | None, result: Any = None) -> bool:
    """Return whether a request, notification or result belongs to the extension."""
    return method in METHODS or (isinstance(result, dict) and result.get("resultType") == "task")


def result_complaint(method: str, result: Any) -> str | None:
    """Return what is wrong with a result of the extension; None if it is valid."""
    return _against("result", "created" if method == "tools/call" else method, result)


def params_complaint(method: str, params: Any) -> str | None:
    """Return what is wrong with params of the extension; None if they are valid."""
    return _against("params", method, params)


@cache
def _validator(what: str, name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for((_SHAPES if what == "result" else _PARAMS)[name], validate_formats=True)


def _against(what: str, name: str, value: Any) -> str | None:
    faults = "; ".join(error.message for error in _validator(what, name).iter_errors(value))
    return f"{what} of {name}: {faults}" if faults else None
