"""What a host application answers when a server asks: sampling, elicitation, roots."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from trunkline import Client, Context, Server
from trunkline.client.elicitation import Choice, Question, UrlQuestion, validate_answer
from trunkline.client.host_callbacks import CallbackContext
from trunkline.errors import InvalidParams, MisuseError
from trunkline.facts import HandlerFailed
from trunkline.protocol.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitParams,
    ElicitResult,
    RequestedSchema,
    Root,
    TextContent,
)
from trunkline.testing import RecordingObserver, ScriptedServer
from trunkline.wire import codec

SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 10}
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "description": "as on the door", "minLength": 2},
        "mail": {"type": "string", "format": "email", "default": "a@b.org"},
        "age": {"type": "integer", "minimum": 0, "default": 7},
        "weight": {"type": "number", "default": 1.5},
        "yes": {"type": "boolean", "default": True},
        "plain": {"type": "string", "enum": ["r", "g"], "default": "g"},
        "titled": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
        "legacy": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
        "many": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "default": ["a"]},
        "many_titled": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "Anton"}]}, "maxItems": 1},
    },
    "required": ["name"],
}


def question(form: dict[str, Any] = FORM) -> Question:
    schema = codec.decoder(RequestedSchema)(codec.to_json(form))
    return Question.of(ElicitParams(message="Who?", requested_schema=schema))


# --- capabilities --------------------------------------------------------------------------------------


def as_tasks(**requests: Any) -> dict[str, Any]:
    """What is declared of requests that may run as tasks."""
    return {"tasks": {"list": {}, "cancel": {}, "requests": requests}}


SAMPLES, ASKS = as_tasks(sampling={"createMessage": {}}), as_tasks(elicitation={"create": {}})


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ({}, {}),
        ({"sampling": lambda _: "x"}, {"sampling": {}, **SAMPLES}),
        ({"sampling": lambda _: "x", "sampling_tools": True}, {"sampling": {"tools": {}}, **SAMPLES}),
        ({"elicitation": lambda _: None}, {"elicitation": {"form": {}}, **ASKS}),
        ({"open_url": lambda _: True}, {"elicitation": {"url": {}}, **ASKS}),
        ({"elicitation": lambda _: None, "open_url": lambda _: True}, {"elicitation": {"form": {}, "url": {}}, **ASKS}),
        ({"roots": []}, {"roots": {"listChanged": True}}),
        ({"experimental": {"x": {}}}, {"experimental": {"x": {}}}),
    ],
)
async def test_missing_callbacks_are_not_declared(options: dict[str, Any], declared: dict[str, Any]) -> None:
    server = ScriptedServer()
    async with Client(server, **options):
        pass
    assert server.line.transcript.said_by("client")[0]["params"]["capabilities"] == declared


def test_sampling_tools_need_a_sampling_callback() -> None:
    with pytest.raises(MisuseError, match="give one"):
        Client(ScriptedServer.__new__(ScriptedServer), sampling_tools=True)


# --- sampling ------------------------------------------------------------------------------------------


@pytest.mark.row("S01")
async def test_sampling_callback_writes_the_message() -> None:
    asked: list[CreateMessageParams] = []

    async def sample(params: CreateMessageParams) -> CreateMessageResult:
        asked.append(params)
        return CreateMessageResult("assistant", TextContent("hello"), "model-1", "endTurn")

    server = ScriptedServer()
    async with Client(server, sampling=sample):
        answer = await server.line.call("sampling/createMessage", SAMPLE)
    assert answer["result"]["model"] == "model-1"
    assert asked[0].max_tokens == 10


@pytest.mark.row("S07", "S15")
async def test_model_reason_and_content_reach_the_handler() -> None:
    asking = Server("asking")
    replies: list[CreateMessageResult] = []

    @asking.tool
    async def ask(ctx: Context) -> str:
        replies.append(await ctx.sample("What is the capital of France?", max_tokens=5))
        return "asked"

    def answer(params: CreateMessageParams) -> CreateMessageResult:
        assert params.max_tokens == 5
        return CreateMessageResult("assistant", TextContent("Paris is the"), "model-1", "max_tokens")

    async with Client(asking, sampling=answer) as client:
        await client.call_tool("ask")
    assert replies == [CreateMessageResult("assistant", TextContent("Paris is the"), "model-1", "maxTokens")]


async def test_plain_callback_may_block_and_return_text() -> None:
    server = ScriptedServer()
    async with Client(server, sampling=lambda _: "hello"):
        answer = await server.line.call("sampling/createMessage", SAMPLE)
    assert answer["result"]["content"] == {"type": "text", "text": "hello"}


@pytest.mark.parametrize("given", [5, None])
async def test_invalid_message_is_reported_on_the_host_only(given: Any) -> None:
    server, observer = ScriptedServer(), RecordingObserver()
    async with Client(server, sampling=lambda _: given, observers=[observer]):
        answer = await server.line.call("sampling/createMessage", SAMPLE)
    assert answer["error"]["code"] == -32603
    [failure] = observer.of(HandlerFailed)
    assert "CreateMessageResult or a string" in str(failure.error)


async def test_undeclared_sampling_tools_are_refused() -> None:
    server = ScriptedServer()
    async with Client(server, sampling=lambda _: "x"):
        tools = [{"name": "t", "inputSchema": {"type": "object"}}]
        answer = await server.line.call("sampling/createMessage", {**SAMPLE, "tools": tools})
    assert answer["error"]["code"] == -32602


@pytest.mark.row("S02")
async def test_sampling_without_callback_is_refused() -> None:
    server = ScriptedServer()
    async with Client(server):
        answer = await server.line.call("sampling/createMessage", SAMPLE)
    assert answer["error"]["code"] == -32601


@pytest.mark.row("K03")
async def test_server_may_ping() -> None:
    server = ScriptedServer()
    async with Client(server):
        assert (await server.line.call("ping"))["result"] == {}


# --- roots ---------------------------------------------------------------------------------------------


@pytest.mark.row("O01")
async def test_roots_are_listed(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with Client(server, roots=[tmp_path, "file:///srv", Root("file:///opt", "opt")]) as client:
        answer = await server.line.call("roots/list")
        assert [root.uri for root in client.roots] == [tmp_path.as_uri(), "file:///srv", "file:///opt"]
    assert [root["uri"] for root in answer["result"]["roots"]] == [tmp_path.as_uri(), "file:///srv", "file:///opt"]


async def test_root_with_non_utf8_name_is_listed(tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    server = ScriptedServer()
    async with Client(server, roots=[root]):
        answer = await server.line.call("roots/list")
    assert answer["result"]["roots"] == [{"uri": f"{tmp_path.as_uri()}/caf%E9", "name": "caf\ufffd"}]


@pytest.mark.row("O02")
async def test_new_roots_notify_the_server() -> None:
    server = ScriptedServer()
    async with Client(server, roots=[]) as client:
        await client.set_roots(["file:///new"])
        await server.line.request("notifications/roots/list_changed")
        assert (await server.line.call("roots/list"))["result"]["roots"] == [{"uri": "file:///new"}]


@pytest.mark.row("O03")
async def test_client_without_roots_cannot_set_them() -> None:
    async with Client(ScriptedServer()) as client:
        with pytest.raises(MisuseError, match="without roots"):
            await client.set_roots([])


def test_root_must_be_a_file_uri() -> None:
    with pytest.raises(MisuseError, match="file: URI or a path"):
        Client(ScriptedServer.__new__(ScriptedServer), roots=["https://example.org"])


# --- forms ---------------------------------------------------------------------------------------------


def test_form_fields_have_one_shape() -> None:
    fields = {field.name: field for field in question().fields}
    assert [(name, field.kind) for name, field in fields.items()] == [
        ("name", "text"),
        ("mail", "text"),
        ("age", "integer"),
        ("weight", "number"),
        ("yes", "yes_no"),
        ("plain", "choice"),
        ("titled", "choice"),
        ("legacy", "choice"),
        ("many", "choices"),
        ("many_titled", "choices"),
    ]
    assert fields["name"].title == "Your name"
    assert fields["name"].description == "as on the door"
    assert (fields["name"].required, fields["mail"].required) == (True, False)
    assert fields["mail"].format == "email"
    assert fields["plain"].choices == (Choice("r", "r"), Choice("g", "g"))
    assert fields["titled"].choices == fields["legacy"].choices == (Choice("r", "Red"), Choice("g", "Green"))
    assert fields["many"].choices == (Choice("a", "a"), Choice("b", "b"))
    assert fields["many_titled"].choices == (Choice("a", "Anton"),)


def test_defaults_complete_the_answer() -> None:
    assert validate_answer(question(), {"name": "Ada"}) == ElicitResult(
        "accept",
        {"mail": "a@b.org", "age": 7, "weight": 1.5, "yes": True, "plain": "g", "many": ["a"], "name": "Ada"},
    )


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"name": "A"},
        {"name": "Ada", "age": -1},
        {"name": "Ada", "age": "7"},
        {"name": "Ada", "titled": "Red"},
        {"name": "Ada", "many": ["c"]},
        {"name": "Ada", "many_titled": ["a", "a"]},
        {"name": "Ada", "password": "unasked"},
    ],
)
def test_answer_not_fitting_the_form_is_not_sent(content: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match="does not fit the form"):
        validate_answer(question(), content)


def test_user_may_decline_or_cancel() -> None:
    assert validate_answer(question(), None) == ElicitResult("decline")
    assert validate_answer(question(), ElicitResult("cancel")) == ElicitResult("cancel")
    assert validate_answer(question(), ElicitResult("accept", {"name": "Ada"})).action == "accept"


def test_answer_of_wrong_type_is_refused() -> None:
    with pytest.raises(MisuseError, match="not int"):
        validate_answer(question(), 5)


def test_elicitation_without_schema_is_refused() -> None:
    with pytest.raises(InvalidParams, match="requestedSchema"):
        Question.of(ElicitParams(message="?"))


@pytest.mark.row("H02")
async def test_form_is_answered_over_a_connection() -> None:
    asked: list[Question] = []

    async def ask(one: Question) -> dict[str, Any]:
        asked.append(one)
        return {"name": "Ada"}

    server = ScriptedServer()
    whole = {name: field for name, field in FORM["properties"].items() if name != "weight"}
    form = {**FORM, "properties": whole}  # the official schema would have every number a whole one
    async with Client(server, elicitation=ask):
        answer = await server.line.call("elicitation/create", {"message": "Who?", "requestedSchema": form})
    assert answer["result"]["action"] == "accept"
    assert answer["result"]["content"]["name"] == "Ada"
    assert asked[0].message == "Who?"


# --- URLs ----------------------------------------------------------------------------------------------

URL = {"mode": "url", "message": "Sign in", "url": "https://example.org/a?b", "elicitationId": "e1"}


@pytest.mark.row("H02")
@pytest.mark.parametrize(
    ("given", "action"), [(True, "accept"), (False, "decline"), (ElicitResult("cancel"), "cancel")]
)
async def test_url_is_opened_only_with_consent(given: Any, action: str) -> None:
    asked: list[UrlQuestion] = []

    async def consent(one: UrlQuestion) -> Any:
        asked.append(one)
        return given

    server = ScriptedServer()
    async with Client(server, open_url=consent):
        answer = await server.line.call("elicitation/create", URL)
    assert answer["result"] == {"action": action}
    assert asked == [UrlQuestion("Sign in", "https://example.org/a?b", "example.org", "e1")]


async def test_invalid_consent_raises() -> None:
    server = ScriptedServer()
    async with Client(server, open_url=lambda _: "yes"):
        assert (await server.line.call("elicitation/create", URL))["error"]["code"] == -32603


@pytest.mark.row("H02")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "//example.org",
        "https://",
        "http://example.org/",
        "https://user:secret@example.org/",
        "https://10.0.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest",
        "https://[fd00::1]/",
    ],
)
def test_forbidden_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidParams):
        UrlQuestion.of(ElicitParams(message="?", mode="url", url=url))


@pytest.mark.parametrize("url", ["http://localhost:8080/x", "http://127.0.0.1/x", "http://[::1]/x"])
def test_local_url_needs_no_https(url: str) -> None:
    assert UrlQuestion.of(ElicitParams(message="?", mode="url", url=url)).url == url


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ({"elicitation": lambda _: None}, URL),
        ({"open_url": lambda _: True}, {"message": "Who?", "requestedSchema": FORM}),
    ],
)
async def test_undeclared_mode_is_refused(options: dict[str, Any], params: dict[str, Any]) -> None:
    server = ScriptedServer()
    async with Client(server, **options):
        answer = await server.line.call("elicitation/create", params)
    assert answer["error"]["code"] == -32602


async def test_cancelled_request_gets_no_reply() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def ask(_: Question) -> dict[str, Any]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    server = ScriptedServer()
    async with Client(server, elicitation=ask) as client:
        params = {"message": "Who?", "requestedSchema": FORM}
        server.line.send({"jsonrpc": "2.0", "id": "s1", "method": "elicitation/create", "params": params})
        await began.wait()
        server.line.notify("notifications/cancelled", {"requestId": "s1"})
        await ended.wait()
        await client.ping()
        assert [m for m in server.line.waiting() if m.get("id") == "s1"] == []


@pytest.mark.parametrize("on_thread", [True, False])
async def test_callback_with_context_reports_progress(on_thread: bool) -> None:
    def plain(_: CreateMessageParams, answering: CallbackContext) -> str:
        assert not answering.cancelled
        answering.progress(1, 2, "half")
        answering.progress(1)
        answering.progress(2, 2)
        return "done"

    async def sample(params: CreateMessageParams, answering: CallbackContext) -> str:
        return plain(params, answering)

    server = ScriptedServer()
    async with Client(server, sampling=plain if on_thread else sample):
        params = {**SAMPLE, "_meta": {"progressToken": "t"}}
        server.line.send({"jsonrpc": "2.0", "id": "s1", "method": "sampling/createMessage", "params": params})
        await server.line.request("notifications/initialized")
        told = [(await server.line.receive()) for _ in range(3)]
    assert [one["params"] for one in told[:2]] == [
        {"progressToken": "t", "progress": 1, "total": 2, "message": "half"},
        {"progressToken": "t", "progress": 2, "total": 2},
    ]
    assert told[2]["id"] == "s1"
