"""Error kinds: the table matches the founding documents, and each kind that is not reserved has a cause."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import pytest
from tests.unit.auth.server.issuer import running_issuer
from tests.unit.transports.http.asgi import Host, hosted, request

from trunkline import (
    Context,
    ImageContent,
    Server,
    Settings,
    TaskPolicy,
    UrlElicitationRequired,
)
from trunkline.auth import Introspection, IssuerLimits, Jwt, Principal, ResourceServer, StaticTokens
from trunkline.errors import (
    REFUSALS,
    MisuseError,
    ModelNotAvailable,
    ProtocolError,
    RefusalCode,
    RetryAdvice,
    SamplingFailed,
    SamplingRateLimited,
)
from trunkline.errors.refusals import REFUSALS_BY_KIND
from trunkline.facts import Dropped
from trunkline.protocol.error_codes import CODES
from trunkline.protocol.error_kinds import KINDS, KINDS_BY_NAME, ErrorKind, ReportedAs
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import ModelPreferences
from trunkline.registry.templates import UriTemplate
from trunkline.sampling import MockModel
from trunkline.stores.memory import MemoryStore
from trunkline.testing import ManualClock, RawPeer, RecordingObserver
from trunkline.transports.channel import MessageOrigin
from trunkline.wire.messages import Malformed

FOUNDING = """
-32700 Parse error
-32600 Invalid Request
-32601 Method not found
-32602 Invalid params
-32603 Internal error
-32001 Resource not found
-32002 Tool not found
-32003 Prompt not found
-32004 Capability not supported
-32005 Server not initialized
-32006 Subscription failed
-32007 Validation failed
-32008 Transport error
-32009 Request timeout
-32010 Rate limit exceeded
-32011 Tool description exceeds max
-32012 Message size exceeds maximum
-32013 Invalid content type
-32014 Content too large
-32015 Invalid encoding
-32016 Binary data too large
-32017 Text too long
-32018 Invalid MIME type
-32019 Unsupported media type
-32020 Media type not acceptable
-32021 Resource template not found
-32022 Invalid URI
-32023 URI syntax error
-32024 URI too long
-32025 Resource access denied
-32026 Resource already exists
-32027 Resource locked
-32028 Resource version mismatch
-32029 Template render failed
-32030 Invalid URI template
-32031 Tool execution failed
-32032 Tool execution timeout
-32033 Tool execution cancelled
-32034 Invalid tool arguments
-32035 Tool is disabled
-32036 Tool result too large
-32037 Tool not allowed
-32038 Maximum concurrent tools exceeded
-32039 Tool dependency failed
-32040 Tool schema invalid
-32042 URL elicitation required
-32043 Prompt argument missing
-32044 Prompt render failed
-32045 Invalid prompt arguments
-32046 Sampling failed
-32047 Sampling timeout
-32048 Invalid model preferences
-32049 Model not available
-32050 Sampling rate limited
-32051 Authentication failed
-32052 Authorization failed
-32053 Invalid credentials
-32054 Token expired
-32055 Insufficient permissions
-32056 Access denied
-32057 Session expired
-32058 Session not found
-32059 Invalid token
-32060 Unauthorized operation
-32071 Invalid cursor
-32072 Cursor expired
-32073 Pagination not supported
-32074 Page size too large
-32075 Invalid page size
-32076 Invalid offset
-32081 Task not found
-32082 Task already exists
-32083 Task failed
-32084 Task cancelled
-32085 Task timeout
-32086 Task state invalid
-32087 Maximum concurrent tasks exceeded
-32088 Task dependency failed
-32089 Task result not ready
-32090 Task already completed
-32091 Invalid progress token
-32092 Progress token expired
-32093 Progress update failed
-32094 Notification failed
-32095 Notification queue full
-32096 Invalid notification type
-32097 Notification not delivered
-32110 Completion not found
-32111 Invalid completion reference
-32112 Invalid completion argument
-32113 Completion failed
"""

OURS = {  # kinds without a row in the founding documents
    "already_initialized",
    "connection_timeout",
    "header_mismatch",
    "idempotency_key_reused",
    "illegal_transition",
    "invalid_content",
    "invalid_envelope",
    "invalid_idempotency_key",
    "maximum_subscriptions_exceeded",
    "invalid_request_state",
    "missing_client_capability",
    "outcome_unknown",
    "progress_value_invalid",
    "refused",
    "request_id_conflict",
    "timeout_reconnecting",
    "unsupported_protocol_version",
}


# --- the table --------------------------------------------------------------------------------------------------


def test_table_matches_founding_documents() -> None:
    rows = [line.split(" ", 1) for line in FOUNDING.split("\n") if line]
    assert len(rows) == 91
    expected = [(int(code), re.sub(r"\W+", "_", message.lower())) for code, message in rows]
    assert [(kind.founding_code, kind.name) for kind in KINDS] == expected


def test_only_errors_have_specification_codes() -> None:
    standard = {-32700, -32600, -32601, -32602, -32603, -32002, -32042, RefusalCode.RATE_LIMIT_EXCEEDED}
    older = {"invalid_tool_arguments"}  # a failed result since 2025-11-25, an error before
    for kind in KINDS:
        told_as_error = (kind.reported_as is ReportedAs.ERROR and kind.reserved is None) or kind.name in older
        assert (kind.code in standard) is told_as_error, kind.name


def errors(of: type[ProtocolError] = ProtocolError) -> Iterator[type[ProtocolError]]:
    for derived in of.__subclasses__():
        yield derived
        yield from errors(derived)


def test_every_error_class_has_known_kind() -> None:
    ours = [error for error in errors() if error.__module__.startswith("trunkline")]
    assert {error.kind for error in ours} - KINDS_BY_NAME.keys() <= OURS
    for error in ours:
        row = KINDS_BY_NAME.get(error.kind)
        if row is not None and row.reported_as is ReportedAs.ERROR:
            newest = dict(CODES.get(error.kind, ())).get(Revision.V2025_11_25, error.code)
            assert (row.reserved, row.code) == (None, newest), error


# --- a server with a cause for each kind --------------------------------------------------------------------------


class LastingStore(MemoryStore):
    """A store that outlives its process and has no bus, so its leases have to be renewed."""

    lasting = True  # pyright: ignore[reportIncompatibleVariableOverride]


class ErrorServer:
    """A server with a cause for each kind, and the peers that trigger them."""

    def __init__(self, compat: Literal["erlmcp"] | None = None) -> None:
        self.compat: Literal["erlmcp"] | None = compat
        self.clock = ManualClock()
        self.observer = RecordingObserver()
        self.began = asyncio.Event()
        settings = Settings(max_text=20, max_binary=10, max_file=10, page_size=1, cursor_lifetime=60, max_tasks=1)
        self.server = Server(
            "t",
            observers=[self.observer],
            clock=self.clock,
            settings=settings,
            logging=False,
            compat=compat,
            store=LastingStore(clock=self.clock),
        )
        self._add_tools()
        self._add_prompts()
        self._add_resources()
        self.peer = RawPeer(self.server)

    def _add_tools(self) -> None:
        server = self.server

        async def waits_for_ever() -> None:
            self.began.set()
            await asyncio.Event().wait()

        server.add_tool(waits_for_ever, name="patient", task=TaskPolicy(timeout=1))
        server.add_tool(waits_for_ever, name="endless", task=True)

        @server.tool
        async def add(a: int, b: int = 3) -> int:
            return a + b

        @server.tool
        async def fails() -> str:
            raise ValueError("secret")

        @server.tool
        async def gives_up() -> str:
            raise asyncio.CancelledError

        @server.tool
        async def asks(ctx: Context) -> str:
            self.began.set()
            return (await ctx.sample("hello", timeout=1)).text

        @server.tool
        async def sends_away() -> str:
            raise UrlElicitationRequired.of(("log in", "https://example.com"))

        async def waits(ctx: Context) -> str:
            self.began.set()
            await asyncio.Event().wait()
            return "done"

        server.add_tool(waits, timeout=5, max_concurrency=1, max_queue=0)
        server.add_tool(add, name="off", enabled=False)
        server.add_tool(add, name="large", max_result_bytes=10)
        server.add_tool(add, name="closed", allow=lambda ctx: False)
        server.add_tool(add, name="needy", requires=[lambda: False])

    def _add_prompts(self) -> None:
        self.server.add_prompt("{language}", name="review")
        self.server.add_prompt(lambda: {"role": "user", "content": {"type": "hologram"}}, name="hologram")
        self.server.add_prompt(lambda: 1 / 0, name="broken")

        async def waits() -> str:
            self.began.set()
            await asyncio.Event().wait()
            return "done"

        def level(number: Literal["1", "2"]) -> str:
            return number

        self.server.add_prompt(waits)
        self.server.add_prompt(level)
        self.server.completion(prompt="review", argument="language")(lambda value: 1 / 0)

    def _add_resources(self) -> None:
        add = self.server.add_resource
        add("doc://broken", lambda: 1 / 0)
        add("doc://files/{+path}", lambda path: path)
        add("doc://long", "x" * 21)
        add("doc://binary", b"x" * 11)
        self.server.add_file("doc://file", __file__)
        add("doc://private", "x", allow=lambda _: False)
        self.server.add_tool(lambda: ImageContent("@@@", "image/png"), name="no_base64", thread=False)
        self.server.add_tool(lambda: ImageContent("AAEC", "foo"), name="no_mime", thread=False)
        self.server.on_first_subscriber(self._watch)

    def _watch(self, uri: str) -> None:
        if uri == "doc://broken":
            raise OSError("cannot be watched")

    # --- actions of peers ---------------------------------------------------------------------------------------

    async def response_to_frame(self, frame: str) -> Any:
        """Return the next message after sending a frame."""
        self.peer.send(frame)
        return await self.peer.receive()

    async def too_large(self) -> Any:
        """The value that a transport passes up for a message over its limit."""
        self.peer.connection.received([Malformed(-32600, "too large", limit=1024)], MessageOrigin())
        return await self.peer.receive()

    async def tool(self, name: str, **arguments: Any) -> Any:
        return await self.peer.request("tools/call", {"name": name, "arguments": arguments})

    async def late(self, method: str, params: Any, seconds: float) -> Any:
        """The response to a call that still runs after so many seconds."""
        ident = self.peer.call(method, params)
        await self.began.wait()
        await self.peer.quiet()
        self.clock.advance(seconds)
        return await self.peer.answer_to(ident)

    async def busy(self) -> Any:
        self.peer.call("tools/call", {"name": "waits"})
        await self.began.wait()
        return await self.tool("waits")

    async def task(self, name: str = "patient") -> Any:
        """The id of a working task."""
        asked = {"name": name, "task": {}}
        made = (await self.peer.result("tools/call", asked))["task"]
        await self.began.wait()
        return {"taskId": made["taskId"]}

    async def ended_task(self, method: str) -> Any:
        """The response about a task that was cancelled."""
        task = await self.task()
        await self.peer.result("tasks/cancel", task)
        return await self.peer.request(method, task)

    async def late_task(self, name: str, seconds: float) -> Any:
        """The status of a task after so much time has passed at once."""
        task = await self.task(name)
        self.clock.advance(seconds)
        await self.peer.quiet()
        self.clock.advance(1)
        return await self.peer.request("tasks/result", task)

    async def second_task(self) -> Any:
        first = await self.task()
        answer = await self.peer.request("tools/call", {"name": "patient", "task": {}})
        await self.peer.result("tasks/cancel", first)  # whose end would block the test
        return answer

    async def expired(self) -> Any:
        cursor = (await self.peer.result("tools/list"))["nextCursor"]
        self.clock.advance(61)
        return await self.peer.request("tools/list", {"cursor": cursor})

    async def reads(self, uri: str) -> Any:
        return await self.peer.request("resources/read", {"uri": uri})

    async def gets(self, name: str, **arguments: Any) -> Any:
        return await self.peer.request("prompts/get", {"name": name, "arguments": arguments})

    async def http_request(self, method: str = "POST", **headers: str) -> Any:
        """The response to an HTTP request."""
        return (await Host(self.server, clock=self.clock).ask(method, request("ping"), **headers)).json

    async def request_with_token(self, token: str | None = None, **options: Any) -> Any:
        """The response to an HTTP request with a token, where the server requires one."""
        gate = ResourceServer(StaticTokens({"known": Principal("ada")}), **options).within("/")
        sent = None if token is None else f"Bearer {token}"
        return (await Host(self.server, clock=self.clock, gate=gate).ask("POST", "{}", authorization=sent)).json

    async def request_with_foreign_token(self, **claims: Any) -> Any:
        """The response to an HTTP request with a token of a foreign issuer."""
        async with running_issuer() as issuer:
            gate = ResourceServer(Jwt(issuer.url), now=issuer.wall).within("/")
            sent = f"Bearer {issuer.token(**claims)}"
            return (await Host(self.server, clock=self.clock, gate=gate).ask("POST", "{}", authorization=sent)).json

    async def sends_unknown_tokens(self) -> Any:
        """The response to one unknown token more than an address may send in a minute."""
        async with running_issuer() as issuer:
            limits = IssuerLimits(rejected_per_minute=1)
            verifier = Introspection(issuer.url, client_id="notes", client_secret="x", limits=limits)
            host = Host(self.server, clock=self.clock, gate=ResourceServer(verifier, now=issuer.wall).within("/"))
            await host.ask("POST", "{}", authorization="Bearer one")
            return (await host.ask("POST", "{}", authorization="Bearer two")).json

    async def request_in_expired_session(self) -> Any:
        """The response to a request in an expired session."""
        host = Host(self.server, clock=self.clock)
        ident = await host.session()
        self.clock.advance(3661)
        return (await host.ask("POST", request("ping"), mcp_session_id=ident)).json

    async def samples_itself(self, model: MockModel) -> Any:
        """The response to a call of a tool that samples, if the client cannot."""
        server = Server("t", sampling=model, observers=[], compat=self.compat)

        @server.tool
        async def asks(ctx: Context) -> str:
            return (await ctx.sample("Hello")).text

        async with RawPeer(server) as peer:
            await peer.initialize(capabilities=FEATURES)
            return await peer.request("tools/call", {"name": "asks"})

    async def completes(self, ref: Any, argument: str = "language") -> Any:
        params = {"ref": ref, "argument": {"name": argument, "value": ""}}
        return await self.peer.request("completion/complete", params)


Cause = Callable[[ErrorServer], Awaitable[Any]]
REVIEW = {"type": "ref/prompt", "name": "review"}

ON_THE_WIRE: dict[str, Cause] = {
    "parse_error": lambda s: s.response_to_frame("{"),
    "invalid_request": lambda s: s.response_to_frame('{"jsonrpc": "1.0", "id": 1, "method": "ping"}'),
    "method_not_found": lambda s: s.peer.request("no/such/method"),
    "invalid_params": lambda s: s.peer.request("tools/call", {"name": 5}),
    "internal_error": lambda s: s.reads("doc://broken"),
    "resource_not_found": lambda s: s.reads("doc://nope"),
    "tool_not_found": lambda s: s.tool("nope"),
    "prompt_not_found": lambda s: s.gets("nope"),
    "capability_not_supported": lambda s: s.peer.request("logging/setLevel", {"level": "info"}),
    "server_not_initialized": lambda s: s.peer.request("tools/list"),
    "subscription_failed": lambda s: s.peer.request("resources/subscribe", {"uri": "doc://broken"}),
    "request_timeout": lambda s: s.late("prompts/get", {"name": "waits"}, 61),
    "rate_limit_exceeded": lambda s: s.sends_unknown_tokens(),
    "message_size_exceeds_maximum": lambda s: s.too_large(),
    "invalid_content_type": lambda s: s.gets("hologram"),
    "content_too_large": lambda s: s.reads("doc://file"),
    "invalid_encoding": lambda s: s.tool("no_base64"),
    "binary_data_too_large": lambda s: s.reads("doc://binary"),
    "text_too_long": lambda s: s.reads("doc://long"),
    "invalid_mime_type": lambda s: s.tool("no_mime"),
    "unsupported_media_type": lambda s: s.http_request(content_type="text/plain"),
    "media_type_not_acceptable": lambda s: s.http_request(accept="image/png"),
    "invalid_uri": lambda s: s.reads(""),
    "uri_syntax_error": lambda s: s.reads("ht!tp://["),
    "uri_too_long": lambda s: s.reads("doc://" + "x" * 2048),
    "resource_access_denied": lambda s: s.reads("doc://files/../etc/passwd"),
    "tool_execution_failed": lambda s: s.tool("fails"),
    "tool_execution_timeout": lambda s: s.late("tools/call", {"name": "waits"}, 6),
    "tool_execution_cancelled": lambda s: s.tool("gives_up"),
    "invalid_tool_arguments": lambda s: s.tool("add", a="x"),
    "tool_is_disabled": lambda s: s.tool("off", a=1),
    "tool_result_too_large": lambda s: s.tool("large", a=1),
    "tool_not_allowed": lambda s: s.tool("closed", a=1),
    "maximum_concurrent_tools_exceeded": lambda s: s.busy(),
    "tool_dependency_failed": lambda s: s.tool("needy", a=1),
    "url_elicitation_required": lambda s: s.tool("sends_away"),
    "prompt_argument_missing": lambda s: s.gets("review"),
    "prompt_render_failed": lambda s: s.gets("broken"),
    "invalid_prompt_arguments": lambda s: s.gets("level", number="3"),
    "sampling_failed": lambda s: s.samples_itself(MockModel(SamplingFailed("broken", detail="secret"))),
    "sampling_timeout": lambda s: s.late("tools/call", {"name": "asks"}, 2),
    "model_not_available": lambda s: s.samples_itself(MockModel(ModelNotAvailable("there is no such model"))),
    "sampling_rate_limited": lambda s: s.samples_itself(MockModel(SamplingRateLimited("later", retry_after=2))),
    "authentication_failed": lambda s: s.request_with_token(),
    "authorization_failed": lambda s: s.request_with_token("known", scopes=["notes"]),
    "invalid_credentials": lambda s: s.request_with_token("unknown"),
    "token_expired": lambda s: s.request_with_foreign_token(exp=1),
    "insufficient_permissions": lambda s: s.reads("doc://private"),
    "access_denied": lambda s: s.http_request(origin="https://evil.example"),
    "session_expired": lambda s: s.request_in_expired_session(),
    "session_not_found": lambda s: s.http_request(mcp_session_id="made-up"),
    "invalid_token": lambda s: s.request_with_foreign_token(aud="https://elsewhere.example.com"),
    "unauthorized_operation": lambda s: s.request_with_token("known", allow=lambda _: False),
    "invalid_cursor": lambda s: s.peer.request("tools/list", {"cursor": "xxx"}),
    "cursor_expired": lambda s: s.expired(),
    "page_size_too_large": lambda s: s.peer.request("tools/list", {"limit": 1001}),
    "invalid_page_size": lambda s: s.peer.request("tools/list", {"limit": 0}),
    "task_not_found": lambda s: s.peer.request("tasks/get", {"taskId": "nope"}),
    "task_failed": lambda s: s.late_task("endless", 60),  # its lease has run out
    "task_cancelled": lambda s: s.ended_task("tasks/result"),
    "task_timeout": lambda s: s.late_task("patient", 1),
    "maximum_concurrent_tasks_exceeded": lambda s: s.second_task(),
    "task_already_completed": lambda s: s.ended_task("tasks/cancel"),
    "completion_not_found": lambda s: s.completes({"type": "ref/prompt", "name": "nope"}),
    "invalid_completion_reference": lambda s: s.completes({"type": "foo", "name": "review"}),
    "invalid_completion_argument": lambda s: s.completes(REVIEW, "nope"),
    "completion_failed": lambda s: s.completes(REVIEW),
}


def on_the_wire(kind: ErrorKind) -> bool:
    return kind.reserved is None and kind.reported_as in {ReportedAs.ERROR, ReportedAs.RESULT}


def test_every_sent_kind_has_a_cause() -> None:
    assert list(ON_THE_WIRE) == [kind.name for kind in KINDS if on_the_wire(kind)]


@pytest.mark.row(
    "E32700", "E32600", "E32601", "E32602", "E32603", "E32001", "E32002", "E32003", "E32004", "E32005", "E32006",
    "E32009", "E32010", "E32012", "E32013", "E32014", "E32015", "E32016", "E32017", "E32018", "E32019", "E32020",
    "E32022", "E32023", "E32024", "E32025", "E32031", "E32032", "E32033", "E32034", "E32035", "E32036", "E32037",
    "E32038", "E32039", "E32042", "E32043", "E32044", "E32045", "E32046", "E32047", "E32049", "E32050", "E32051",
    "E32052", "E32053", "E32054", "E32055", "E32056", "E32057", "E32058", "E32059", "E32060", "E32071", "E32072",
    "E32074", "E32075", "E32081", "E32083", "E32084", "E32085", "E32087", "E32090", "E32110", "E32111", "E32112",
    "E32113",
)  # fmt: skip
@pytest.mark.row("T18", "Y03")
@pytest.mark.parametrize("name", ON_THE_WIRE)
async def test_kind_is_sent_as_listed(name: str) -> None:
    stage, kind = ErrorServer(), KINDS_BY_NAME[name]
    async with stage.peer:
        if name != "server_not_initialized":
            await stage.peer.initialize(capabilities={"sampling": {}})
        answer = await ON_THE_WIRE[name](stage)
    if kind.reported_as is ReportedAs.ERROR and "error" in answer:
        assert (answer["error"]["code"], answer["error"]["data"]["kind"]) == (kind.code, name)
    else:  # an error elsewhere, here a failed tool result
        assert answer["result"]["isError"] is True
        assert answer["result"]["_meta"]["trunkline/error"]["kind"] == name
    assert "secret" not in str(answer)
    await stage.server.aclose()


FEATURES = {"tools": {}, "resources": {"subscribe": True}, "prompts": {}, "completions": {}, "tasks": {}}


@pytest.mark.row(
    "E32700e", "E32600e", "E32601e", "E32602e", "E32603e", "E32001e", "E32002e", "E32003e", "E32004e", "E32005e",
    "E32006e", "E32009e", "E32010e", "E32012e", "E32013e", "E32014e", "E32015e", "E32016e", "E32017e", "E32018e",
    "E32019e", "E32020e", "E32022e", "E32023e", "E32024e", "E32025e", "E32031e", "E32032e", "E32033e", "E32034e",
    "E32035e", "E32036e", "E32037e", "E32038e", "E32039e", "E32042e", "E32043e", "E32044e", "E32045e", "E32046e",
    "E32047e", "E32049e", "E32050e", "E32051e", "E32052e", "E32053e", "E32054e", "E32055e", "E32056e", "E32057e",
    "E32058e", "E32059e", "E32060e", "E32071e", "E32072e", "E32074e", "E32075e", "E32081e", "E32083e", "E32084e",
    "E32085e", "E32087e", "E32090e", "E32110e", "E32111e", "E32112e", "E32113e",
)  # fmt: skip
@pytest.mark.off_the_record  # the profile sends codes that no schema has
@pytest.mark.parametrize("name", ON_THE_WIRE)
async def test_kind_has_its_founding_number_under_the_profile(name: str) -> None:
    stage = ErrorServer(compat="erlmcp")
    async with stage.peer:
        if name != "server_not_initialized":
            await stage.peer.initialize(capabilities={"sampling": {}, **FEATURES})
        answer = await ON_THE_WIRE[name](stage)
    assert (answer["error"]["code"], answer["error"]["data"]["kind"]) == (KINDS_BY_NAME[name].founding_code, name)
    await stage.server.aclose()


GUARDS = [name for name in ON_THE_WIRE if name in REFUSALS_BY_KIND]


@pytest.mark.row("E1004", "E1005", "E1007", "E1009", "Q04", "Q08")
@pytest.mark.off_the_record  # the profile sends codes that no schema has
@pytest.mark.parametrize("compat", [None, "erlmcp"])
@pytest.mark.parametrize("name", GUARDS)
async def test_guard_names_the_reason_of_its_refusal(name: str, compat: Literal["erlmcp"] | None) -> None:
    stage = ErrorServer(compat=compat)
    async with stage.peer:
        await stage.peer.initialize(capabilities={"sampling": {}, **FEATURES})
        answer = await ON_THE_WIRE[name](stage)
    known = REFUSALS[REFUSALS_BY_KIND[name]]
    if "error" in answer:
        code, data = answer["error"]["code"], answer["error"]["data"]
        refusal = data.get("refusal", {"code": code, **data})  # unless its code is the number
        assert (code < 0) is ("refusal" in data)
    else:
        meta = answer["result"]["_meta"]
        data, refusal = meta["trunkline/error"], meta["trunkline/refusal"]
        assert refusal["hint"]
        assert data.get("retryAfterMs") == refusal.get("retryAfterMs")
    assert (refusal["code"], data["kind"]) == (known.code, name)
    assert refusal.get("name", known.name) == known.name
    assert ("retryAfterMs" in data) is (known.retry is RetryAdvice.AFTER_DELAY)
    await stage.server.aclose()


# --- local errors ---------------------------------------------------------------------------------------------------


def described(length: int) -> Callable[[Server], None]:
    return lambda server: server.add_tool(lambda: None, name="tool", description="x" * length)


async def sampled(server: Server) -> None:
    raised: list[Exception] = []

    @server.tool
    async def sample(ctx: Context) -> None:
        try:
            await ctx.sample("hello", model_preferences=ModelPreferences(cost_priority=1.1))
        except MisuseError as error:
            raised.append(error)

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        await peer.result("tools/call", {"name": "sample"})
    raise raised[0]


RAISED: dict[str, Callable[[Server], Any]] = {
    "tool_description_exceeds_max": described(10_001),
    "resource_template_not_found": lambda server: server.remove_resource("x://{y}"),
    "resource_already_exists": lambda server: [server.add_resource("x://y", "") for _ in range(2)],
    "template_render_failed": lambda server: UriTemplate("x://{y}").expand({"y": "\ud800"}),
    "invalid_uri_template": lambda server: server.add_resource("x://{y", lambda y: y),
    "tool_schema_invalid": lambda server: server.add_tool(lambda: None, name="tool", input_schema={"type": "strng"}),
    "invalid_model_preferences": sampled,
    "invalid_notification_type": lambda server: server.notify_list_changed("x/y"),
}


def test_every_raised_kind_has_a_cause() -> None:
    assert list(RAISED) == [
        kind.name for kind in KINDS if kind.reported_as is ReportedAs.RAISED and kind.reserved is None
    ]


@pytest.mark.row(
    "E32011", "E32021", "E32026", "E32029", "E32030", "E32040", "E32048", "E32096",
)  # fmt: skip
@pytest.mark.row("T18")
@pytest.mark.parametrize("name", RAISED)
async def test_kind_is_raised_for_misuse(name: str) -> None:
    async def go_wrong() -> None:
        made = RAISED[name](Server("t"))
        if isinstance(made, Awaitable):
            await made

    with pytest.raises(MisuseError) as caught:
        await go_wrong()
    assert caught.value.kind == name


async def strange_progress(stage: ErrorServer) -> None:
    stage.peer.notify("notifications/progress", {"progressToken": "nobody", "progress": 1})
    await stage.peer.quiet()


async def late_progress(stage: ErrorServer) -> None:
    contexts: list[Context] = []

    @stage.server.tool
    async def keeps(ctx: Context) -> None:
        contexts.append(ctx)

    await stage.tool("keeps")
    contexts[0].progress(1)


async def notification_flood(stage: ErrorServer) -> None:
    settings = Settings(max_connections=1, max_waiting=1)
    server = Server("t", observers=[stage.observer], settings=settings)

    @server.notification("acme/slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    async with hosted(server) as host:
        for _ in range(3):
            body = {"jsonrpc": "2.0", "method": "acme/slow"}
            await host.ask("POST", body, mcp_protocol_version="2026-07-28")


REPORTED_TO_OBSERVERS: dict[str, Cause] = {
    "invalid_progress_token": strange_progress,
    "progress_token_expired": late_progress,
    "notification_queue_full": notification_flood,
}


def test_every_fact_kind_has_a_cause() -> None:
    assert list(REPORTED_TO_OBSERVERS) == [kind.name for kind in KINDS if kind.reported_as is ReportedAs.FACT]


@pytest.mark.row(
    "E32091", "E32092", "E32095",
)  # fmt: skip
@pytest.mark.parametrize("name", REPORTED_TO_OBSERVERS)
async def test_observers_get_unsent_kinds(name: str) -> None:
    stage = ErrorServer()
    async with stage.peer:
        await stage.peer.initialize()
        await REPORTED_TO_OBSERVERS[name](stage)
    assert name in [fact.kind for fact in stage.observer.of(Dropped)]
