"""The catalog of a server of the official Python SDK, for any version of the SDK: every feature.

Lists and results are plain JSON here, which either version decodes into its own types. A session is the SDK's: the
methods used here exist in both versions. Tools return text, JSON where there is more to say.
"""

import base64
import json
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import anyio
from mcp import types

NAME, VERSION, INSTRUCTIONS = "everything", "1.0", "Try everything."
FORM_URL, FORM_ID = "https://example.com/form", "form-1"
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
PEOPLE: Final = {"Ada": "lace", "Alan": "machine", "Grace": "compiler"}
SPARE: Final = {"tools": "spare", "resources": "test://spare", "prompts": "spare"}  # hidden and shown again
PNG: Final = base64.b64encode(b"\x89PNG").decode()
WEIGHED: Final = {
    "type": "object",
    "title": "Weighed",
    "properties": {"who": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}}},
    "required": ["who", "parts"],
    "$defs": {
        "Part": {
            "type": "object",
            "properties": {"kilos": {"type": "number"}, "at": {"type": "string", "format": "date-time"}},
            "required": ["kilos", "at"],
        }
    },
}
FORM: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name"},
        "age": {"type": "integer", "minimum": 0},
        "likes": {"type": "string", "enum": ["tea", "coffee"], "default": "tea"},
    },
    "required": ["name", "age"],
}
CONTENT: Final = [
    {"type": "text", "text": "words", "annotations": {"audience": ["user"], "priority": 0.5}},
    {"type": "image", "data": PNG, "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "test://static", "mimeType": "text/plain", "text": "static text"}},
]
NEWER_CONTENT: Final = {  # by the revision that introduced it
    "2025-03-26": [{"type": "audio", "data": PNG, "mimeType": "audio/wav"}],
    "2025-06-18": [{"type": "resource_link", "uri": "test://static", "name": "static"}],
}


class NoSuchThing(Exception):
    """The requested entry does not exist; the code tells the client."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def text(value: str, *, is_error: bool = False) -> dict[str, Any]:
    """The result of a tool that returns text."""
    return {"content": [{"type": "text", "text": value}], "isError": is_error}


def page(items: list[dict[str, Any]], key: str, cursor: str | None, size: int) -> dict[str, Any]:
    """One page of a list."""
    start = int(cursor or 0)
    rest = {"nextCursor": str(start + size)} if start + size < len(items) else {}
    return {key: items[start : start + size], **rest}


class Call(NamedTuple):
    """A tool call. Messages with its id go to the stream of its response, others to where the SDK decides."""

    session: Any
    token: Any  # of progress
    ident: Any


class Offer:
    """The catalog and its state."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()
        self.level = "debug"
        self.subscribed: set[str] = set()
        self.events: defaultdict[str, anyio.Event] = defaultdict(anyio.Event)  # events, by name

    # --- tools ---------------------------------------------------------------------------------

    def tools(self, cursor: str | None) -> dict[str, Any]:
        listed = [
            {"name": name, "description": (function.__doc__ or "").strip(), **_described(name, function)}
            for name, function in self._functions().items()
            if name != SPARE["tools"] or "tools" not in self.hidden
        ]
        return page(listed, "tools", cursor, 8)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        return {name.removeprefix("tool_"): getattr(self, name) for name in dir(self) if name.startswith("tool_")}

    async def call(self, call: Call, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        function = self._functions().get(name)
        if function is None:
            raise NoSuchThing(types.INVALID_PARAMS, f"unknown tool: {name}")
        result = await function(call, **arguments)
        return text(result) if isinstance(result, str) else result

    async def tool_add(self, _: Call, a: int, b: int) -> str:
        """Adds two numbers."""
        return str(a + b)

    async def tool_pid(self, _: Call) -> str:
        """The pid of this process."""
        return str(os.getpid())

    async def tool_fail(self, _: Call) -> dict[str, Any]:
        """Fails, and says why."""
        return text("failed on purpose", is_error=True)

    async def tool_weigh(self, _: Call, who: str) -> dict[str, Any]:
        """Returns structured content."""
        weighed = {"who": who, "parts": [{"kilos": 1.5, "at": "2025-11-25T10:30:00Z"}]}
        return {**text(json.dumps(weighed)), "structuredContent": weighed}

    async def tool_misweigh(self, _: Call, who: str) -> dict[str, Any]:
        """Returns structured content that its own schema does not allow."""
        return {**text("wrong"), "structuredContent": {"who": who}}

    async def tool_show_all(self, _: Call, revision: str) -> dict[str, Any]:
        """Returns one block of each kind of content that a revision has."""
        newer = [block for since, blocks in NEWER_CONTENT.items() if since <= revision for block in blocks]
        return {"content": CONTENT + newer}

    async def tool_spare(self, _: Call) -> str:
        """Can be hidden."""
        return "spare"

    async def tool_count(self, call: Call, steps: int) -> str:
        """Reports progress at every step."""
        for step in range(1, steps + 1):
            await call.session.send_progress_notification(call.token, step, steps, f"step {step}", call.ident)
        return "done"

    async def tool_count_in_step(self, call: Call, steps: int) -> str:
        """Reports progress at every step, and goes on when the client has read it."""
        for step in range(1, steps + 1):
            await call.session.send_progress_notification(call.token, step, steps, f"step {step}", call.ident)
            await self.tool_happened(call, "step read")
        return "done"

    async def tool_go_on(self, _: Call) -> str:
        """Confirm that a step has been read."""
        self.events["step read"].set()
        return "going on"

    async def tool_hang(self, call: Call) -> str:
        """Reports that it has started, and never ends by itself."""
        await call.session.send_progress_notification(call.token, 1, related_request_id=call.ident)
        try:
            await anyio.sleep_forever()
        finally:
            self.events["hang cancelled"].set()
        return "never"

    async def tool_happened(self, _: Call, event: str) -> str:
        """Return once the event has happened. Each event is reported once."""
        await self.events[event].wait()
        del self.events[event]
        return event

    async def tool_log(self, call: Call, level: str, text: str) -> str:
        """Logs a message to the client, if its level is high enough."""
        if LEVELS.index(level) >= LEVELS.index(self.level):
            await call.session.send_log_message(level, {"text": text}, NAME, call.ident)
        return "logged"

    async def tool_touch(self, call: Call, uri: str) -> str:
        """Notify the subscriber of a resource."""
        await self.updated(call.session, uri)
        return "touched"

    async def tool_hide(self, call: Call, kind: str) -> str:
        """Hide the spare entry of a kind."""
        self.hidden.add(kind)
        await self.changed(call.session, kind)
        return "hidden"

    async def tool_show(self, call: Call, kind: str) -> str:
        """Show the spare entry of a kind again."""
        self.hidden.discard(kind)
        await self.changed(call.session, kind)
        return "shown"

    async def updated(self, session: Any, uri: str) -> None:
        """Notify subscribers that a resource has changed."""
        if uri in self.subscribed:
            await session.send_resource_updated(uri)

    async def changed(self, session: Any, kind: str) -> None:
        """Notify clients that a list has changed."""
        await getattr(session, f"send_{kind.removesuffix('s')}_list_changed")()

    # --- tools that send requests to the client ------------------------------------------------

    async def tool_ping_client(self, call: Call) -> str:
        """Ping the client."""
        await call.session.send_ping()
        return "pong"

    async def tool_client_capabilities(self, call: Call) -> str:
        """What the client declared, as JSON."""
        declared = call.session.client_params.capabilities
        return json.dumps(declared.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def tool_sample(self, call: Call, prompt: str) -> str:
        """Sample with the client's model."""
        reply = await call.session.create_message([self.said(prompt)], max_tokens=100, related_request_id=call.ident)
        return json.dumps({"text": reply.content.text, "model": reply.model})

    async def tool_sample_impatiently(self, call: Call, prompt: str) -> str:
        """Sample, and cancel the request as soon as the client's model works on it, or when it takes long."""
        with anyio.move_on_after(1.0) as scope:

            async def give_up(*_: object) -> None:
                scope.cancel()

            await self.sample_watching(call.session, prompt, give_up)
            return "answered in time"
        await self.cancelled(call.session)
        return "gave up"

    async def cancelled(self, session: Any) -> None:
        """Ensure that the client receives the cancellation of a request."""

    async def tool_sample_watching(self, call: Call, prompt: str) -> str:
        """Sample with the client's model, and receive its progress."""
        heard: list[list[Any]] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append([progress, total, message])

        await self.sample_watching(call.session, prompt, hear)
        return json.dumps(heard)

    async def tool_sample_attentively(self, call: Call, prompt: str) -> str:
        """Sample with the client's model, and return the numbers that it has reported as progress."""
        return json.dumps([number for number, *_ in json.loads(await self.tool_sample_watching(call, prompt))])

    async def sample_watching(self, session: Any, prompt: str, hear: Any) -> None:
        """Specific to each version of the SDK."""
        raise NotImplementedError

    @staticmethod
    def said(prompt: str) -> types.SamplingMessage:
        """A message of the user to a model."""
        return types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))

    async def tool_elicit(self, call: Call, message: str) -> str:
        """Asks the user to fill in a form."""
        answer = await call.session.elicit_form(message, FORM, call.ident)
        return json.dumps({"action": answer.action, **(answer.content or {})})

    async def tool_elicit_url(self, call: Call, message: str) -> str:
        """Sends the user to a page."""
        return (await call.session.elicit_url(message, FORM_URL, FORM_ID, call.ident)).action

    async def tool_finish_elicitation(self, call: Call) -> str:
        """Report that the user is done with the page."""
        await call.session.send_elicit_complete(FORM_ID, call.ident)
        return "finished"

    async def tool_list_roots(self, call: Call) -> str:
        """The roots of the client."""
        return json.dumps([[str(root.uri), root.name] for root in (await call.session.list_roots()).roots])

    # --- resources -----------------------------------------------------------------------------

    def resources(self, cursor: str | None) -> dict[str, Any]:
        listed = [
            {
                "uri": "test://static",
                "name": "static",
                "mimeType": "text/plain",
                "description": "Always the same text.",
            },
            {"uri": "test://binary", "name": "binary", "mimeType": "application/octet-stream"},
        ]
        if "resources" not in self.hidden:
            listed.append({"uri": SPARE["resources"], "name": "spare"})
        return page(listed, "resources", cursor, 2)

    def templates(self) -> list[dict[str, Any]]:
        return [{"uriTemplate": "test://item/{id}", "name": "item"}, {"uriTemplate": "test://by/{who}", "name": "by"}]

    def read(self, uri: str) -> tuple[str | bytes, str]:
        """The content of a resource, and its type."""
        match uri.removeprefix("test://").split("/"):
            case ["static"]:
                return "static text", "text/plain"
            case ["binary"]:
                return bytes([0, 1, 2]), "application/octet-stream"
            case ["item", key]:
                return f"item {key}", "text/plain"
            case _:
                raise NoSuchThing(-32002, f"no resource {uri}")

    # --- prompts, completion -------------------------------------------------------------------

    def prompts(self, cursor: str | None) -> dict[str, Any]:
        who = [{"name": "who", "required": True}, {"name": "thing"}]
        listed: list[dict[str, Any]] = [{"name": "greet", "description": "Greets somebody.", "arguments": who}]
        if "prompts" not in self.hidden:
            listed.append({"name": SPARE["prompts"]})
        return page(listed, "prompts", cursor, 1)

    def prompt(self, name: str, arguments: dict[str, str]) -> dict[str, Any]:
        if name != "greet":
            raise NoSuchThing(types.INVALID_PARAMS, f"unknown prompt: {name}")
        said = {"type": "text", "text": f"Say hello to {arguments['who']}."}
        shown = {"type": "resource", "resource": {"uri": "test://static", "text": "static text"}}
        return {"messages": [{"role": "user", "content": said}, {"role": "assistant", "content": shown}]}

    def complete(self, name: str, argument: str, value: str, filled: dict[str, str]) -> dict[str, Any]:
        """Names of people, or of the thing that belongs to the person in the other argument."""
        known = [PEOPLE[filled["who"]]] if argument == "thing" and "who" in filled else list(PEOPLE)
        values = [one for one in known if one.startswith(value)] if name in {"greet", "test://by/{who}"} else []
        return {"values": values, "total": len(values), "hasMore": False}


def _described(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The schemas of a tool, and its annotations."""
    kinds = {int: "integer", str: "string"}
    parameters = {key: {"type": kinds[kind]} for key, kind in function.__annotations__.items() if kind in kinds}
    parameters.pop("return", None)
    known: dict[str, Any] = {
        "inputSchema": {"type": "object", "properties": parameters, "required": list(parameters)},
        "annotations": {"title": name.title(), "readOnlyHint": name in {"add", "happened", "weigh"}},
    }
    return known | ({"outputSchema": WEIGHED} if name.endswith("weigh") else {})
