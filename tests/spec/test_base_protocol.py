"""Base protocol: requests, responses, notifications, and invalid messages."""

import asyncio
from typing import Annotated, Any

import pytest
from msgspec import Meta

from trunkline import Context, Server
from trunkline.errors import InvalidParams, MethodNotFound, PeerError, Refusal, RequestTimeout
from trunkline.facts import CallEnded, CallStarted, Dropped, Fact, HandlerFailed, Received, SubscriptionStep
from trunkline.protocol.revisions import HANDSHAKE
from trunkline.rpc.dispatch import Feature
from trunkline.server.features import FEATURES
from trunkline.testing import ManualClock, RawPeer, RecordingObserver

REVISIONS = [revision.value for revision in HANDSHAKE]
OLDER = REVISIONS[:-1]


def calculator(**options: Any) -> Server:
    server = Server("calculator", **options)

    @server.tool
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return f"Result: {a + b}"

    return server


def asking(question: str = "ping", **options: Any) -> Server:
    """A server with a tool that sends the client a request and records the outcome."""
    server = Server("asking", **options)

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await (ctx.ping() if question == "ping" else ctx.sample("hello"))
        except (PeerError, RequestTimeout) as error:
            return f"{type(error).__name__}: {error}"
        return "answered"

    return server


def text(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]


# --- requests and responses ----------------------------------------------------------------------


@pytest.mark.row("P01")
@pytest.mark.parametrize("ident", [1, "init-1", 0, "", -3, 2**53])
async def test_response_has_request_id(ident: int | str) -> None:
    async with RawPeer(Server("t")) as peer:
        answer = await peer.request("ping", id=ident)
        assert answer == {"jsonrpc": "2.0", "id": ident, "result": {}}
        assert type(answer["id"]) is type(ident)


@pytest.mark.row("P02")
async def test_responses_in_reverse_order_match_requests() -> None:
    server = Server("t")

    @server.tool
    async def both(ctx: Context) -> str:
        first, second = await asyncio.gather(ctx.sample("one"), ctx.sample("two"))
        return f"{first.content.text} {second.content.text}"  # type: ignore[union-attr]

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        call = peer.call("tools/call", {"name": "both"})
        asked = [await peer.receive(), await peer.receive()]
        for request in reversed(asked):
            said = request["params"]["messages"][0]["content"]["text"]
            content = {"type": "text", "text": f"answer to {said}"}
            peer.reply(request, {"role": "assistant", "content": content, "model": "m"})
        assert text(await peer.answer_to(call)) == "answer to one answer to two"


@pytest.mark.row("P03", "P26")
@pytest.mark.parametrize("data", ["Tool 'unknown' not found", {"a": [1, None]}, 5])
async def test_peer_error_has_code_message_and_data(data: object) -> None:
    server = Server("t")
    caught: list[PeerError] = []

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.sample("hello")
        except PeerError as error:
            caught.append(error)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"sampling": {}})
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        peer.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -1, "message": "rejected", "data": data}})
        assert text(await peer.answer_to(call)) == "done"
    (error,) = caught
    assert (error.code, error.message, error.data) == (-1, "rejected", data)


@pytest.mark.row("P04")
@pytest.mark.parametrize(
    "notification",
    [
        '{"jsonrpc":"2.0","method":"foo/bar"}',
        '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"add"}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":5}',
        '{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":[1]}',
    ],
)
async def test_notification_gets_no_response(notification: str) -> None:
    async with RawPeer(calculator()) as peer:
        await peer.initialize()
        peer.send(notification)
        assert await peer.quiet() == []


@pytest.mark.row("P25")
async def test_calculator_example_adds_5_and_3() -> None:
    async with RawPeer(calculator()) as peer:
        await peer.initialize()
        answer = await peer.request("tools/call", {"name": "add", "arguments": {"a": 5, "b": 3}})
        assert answer["result"]["content"] == [{"type": "text", "text": "Result: 8"}]
        assert not answer["result"].get("isError")


# --- invalid messages ----------------------------------------------------------------------------


@pytest.mark.row("P07", "X27")
@pytest.mark.parametrize(
    "frame", [b"{oops", b"{", b"", b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xe9"}}']
)
async def test_parse_error_keeps_connection_usable(frame: bytes) -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        peer.send(frame)
        answer = await peer.receive()
        assert answer["error"]["code"] == -32700
        assert answer["error"]["data"]["kind"] == "parse_error"
        assert await peer.result("ping") == {}


@pytest.mark.row("P07")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_unreadable_id_is_null_or_omitted_by_revision(revision: str) -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize(revision)
        peer.send("{oops")
        answer = await peer.receive()
        assert answer.get("id", "left out") == (None if revision in OLDER else "left out")


@pytest.mark.row("P08")
@pytest.mark.parametrize(
    ("message", "code", "ident"),
    [
        ('{"id":1,"method":"ping"}', -32600, 1),
        ('{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        ('{"jsonrpc":2.0,"id":"a","method":"ping"}', -32600, "a"),
    ],
)
async def test_message_must_have_jsonrpc_2_0(message: str, code: int, ident: object) -> None:
    async with RawPeer(Server("t")) as peer:
        peer.send(message)
        answer = await peer.receive()
        assert (answer["error"]["code"], answer["id"]) == (code, ident)


@pytest.mark.row("P09")
@pytest.mark.parametrize("method", ["", ',"method":5', ',"method":null'])
async def test_request_must_have_a_method(method: str) -> None:
    async with RawPeer(Server("t")) as peer:
        peer.send(f'{{"jsonrpc":"2.0","id":1{method}}}')
        answer = await peer.receive()
        assert (answer["error"]["code"], answer["id"]) == (-32600, 1)
        assert "'method'" in answer["error"]["message"]


@pytest.mark.row("P10")
@pytest.mark.parametrize(("params", "code"), [("5", -32600), ('"text"', -32600), ("null", -32600), ("[1]", -32602)])
async def test_params_must_be_an_object(params: str, code: int) -> None:
    async with RawPeer(Server("t")) as peer:
        peer.send(f'{{"jsonrpc":"2.0","id":1,"method":"ping","params":{params}}}')
        answer = await peer.receive()
        assert (answer["error"]["code"], answer["id"]) == (code, 1)


@pytest.mark.row("P11")
@pytest.mark.parametrize("ident", ["null", "1.5", "true", "[]"])
async def test_request_id_must_be_a_string_or_an_integer(ident: str) -> None:
    async with RawPeer(Server("t")) as peer:
        peer.send(f'{{"jsonrpc":"2.0","id":{ident},"method":"ping"}}')
        answer = await peer.receive()
        assert answer["error"]["code"] == -32600
        assert "id" not in answer


@pytest.mark.row("P12")
@pytest.mark.parametrize("outcome", ['"result":{},"error":{"code":1,"message":""}', '"error":"no"', None])
async def test_unreadable_response_fails_request(outcome: str | None) -> None:
    async with RawPeer(asking(clock=ManualClock())) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        rest = "" if outcome is None else f",{outcome}"
        peer.send(f'{{"jsonrpc":"2.0","id":{asked["id"]}{rest}}}')
        assert text(await peer.answer_to(call)).startswith("BadAnswer: the response to ping is not valid")


@pytest.mark.row("P12")
async def test_unmatched_response_is_dropped() -> None:
    observer = RecordingObserver()
    async with RawPeer(Server("t", observers=[observer])) as peer:
        peer.send('{"jsonrpc":"2.0","id":7,"result":{}}')
        peer.send('{"jsonrpc":"2.0","error":{"code":-32700,"message":"what?"}}')
        assert await peer.quiet() == []
    assert [fact.kind for fact in observer.of(Dropped)] == ["unexpected_reply"] * 2


@pytest.mark.row("A23")
async def test_invalid_message_never_reaches_handler() -> None:
    observer = RecordingObserver()
    async with RawPeer(calculator(observers=[observer])) as peer:
        await peer.initialize()
        observer.facts.clear()
        for frame in (
            "{oops",
            "5",
            '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
            '{"id":2,"method":"ping"}',
        ):
            peer.send(frame)
            assert "error" in await peer.receive()
    assert observer.of(CallStarted) == []
    assert [fact.kind for fact in observer.of(Dropped)] == ["refused"] * 4


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.row("P13", "PH35")
async def test_unknown_method_is_not_found() -> None:
    async with RawPeer(Server("t")) as peer:
        await peer.initialize()
        error = await peer.error("foo/bar")
        assert error["code"] == -32601
        assert error["data"] == {"kind": "method_not_found", "method": "foo/bar"}


@pytest.mark.row("P14")
async def test_invalid_params_error_names_path() -> None:
    server = Server("t")
    server.add_resource("note://a", "text")
    async with RawPeer(server) as peer:
        await peer.initialize()
        missing = await peer.error("resources/read", {})
        assert (missing["code"], missing["data"]["kind"]) == (-32602, "invalid_params")
        assert "uri" in missing["data"]["errors"][0]["message"]
        wrong = await peer.error("resources/read", {"uri": 5})
        assert wrong["data"]["errors"][0]["path"] == "$.uri"


@pytest.mark.row("P15", "PH35")
async def test_internal_error_hides_details() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the password is 1234")

    observer = RecordingObserver()
    features = [feature for feature in FEATURES if feature.name != "logging"]
    broken_logging = Feature("logging", {"logging/setLevel": broken})
    async with RawPeer(Server("t", features=[*features, broken_logging], observers=[observer])) as peer:
        await peer.initialize()
        error = await peer.error("logging/setLevel", {"level": "info"})
        assert (error["code"], error["data"]["kind"]) == (-32603, "internal_error")
        assert "1234" not in str(error)
        assert "Traceback" not in str(error)
    (failure,) = observer.of(HandlerFailed)
    assert str(failure.error) == "the password is 1234"
    assert failure.reference == error["data"]["reference"]


@pytest.mark.row("P20")
@pytest.mark.parametrize(
    ("frame", "code", "kind"),
    [
        ("{oops", -32700, "parse_error"),
        ('{"id":1,"method":"ping"}', -32600, "invalid_request"),
        ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', -32602, "invalid_params"),
        ('{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a://raises"}}', -32603, "internal_error"),
        ('{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a://refuses"}}', -32602, "invalid_params"),
    ],
)
async def test_every_error_kind_has_a_cause(frame: str, code: int, kind: str) -> None:
    server = calculator()

    @server.resource("a://raises")
    async def raises() -> str:
        raise ValueError("the cause")

    @server.resource("a://refuses")
    async def refuses() -> str:
        raise InvalidParams("on purpose")

    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.send(frame)
        error = (await peer.receive())["error"]
        assert (error["code"], error["data"]["kind"]) == (code, kind)


@pytest.mark.row("P20")
async def test_observer_gets_exception() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])

    @server.tool
    async def fail() -> str:
        raise ValueError("outer") from KeyError("inner")

    async with RawPeer(server) as peer:
        await peer.initialize()
        answer = await peer.request("tools/call", {"name": "fail"})
        assert answer["result"]["isError"]
        assert "outer" not in text(answer)
    (failure,) = observer.of(HandlerFailed)
    assert isinstance(failure.error, ValueError)
    assert isinstance(failure.error.__cause__, KeyError)


@pytest.mark.row("P21")
async def test_validation_error_names_path_rule_and_expectation() -> None:
    server = Server("t")

    @server.tool
    def search(limit: Annotated[int, Meta(ge=1, le=1000)] = 100) -> str:
        return str(limit)

    async with RawPeer(server) as peer:
        await peer.initialize("2025-06-18")
        error = await peer.error("tools/call", {"name": "search", "arguments": {"limit": -5}})
        (fault,) = error["data"]["errors"]
        assert fault.keys() == {"path", "rule", "message"}
        assert "limit" in fault["path"]
        assert fault["rule"] == "minimum"
        assert "1" in fault["message"]


# --- the order of facts for observers ------------------------------------------------------------


class Trace:
    """An observer that records each fact with the requests in flight and whether the response was sent."""

    immediate = True

    def __init__(self) -> None:
        self.peer: RawPeer | None = None
        self.steps: list[tuple[str, int, int]] = []

    def on(self, fact: Fact) -> None:
        if self.peer is not None:
            under_way = len(self.peer.connection.session.incoming_requests)
            self.steps.append((type(fact).__name__, under_way, len(self.peer.transcript.said_by("server"))))


async def test_request_is_tracked_until_answered() -> None:
    trace = Trace()
    async with RawPeer(calculator(observers=[trace])) as peer:
        await peer.initialize()
        await peer.quiet()
        said = len(peer.transcript.said_by("server"))
        trace.peer = peer
        await peer.request("tools/call", {"name": "add", "arguments": {"a": 5, "b": 3}})
        trace.peer = None
    assert trace.steps == [("Received", 0, said), ("CallStarted", 1, said), ("CallEnded", 0, said + 1)]


@pytest.mark.row("P17", "A07")
async def test_running_request_is_tracked_with_id_and_time() -> None:
    clock, go = ManualClock(start=500), asyncio.Event()
    server = Server("t", clock=clock)

    @server.tool
    async def slow() -> str:
        await go.wait()
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        call = peer.call("tools/call", {"name": "slow"}, id="slow one")
        await peer.quiet()
        (running,) = peer.connection.session.incoming_requests.values()
        assert (running.id, running.method.name, running.started) == ("slow one", "tools/call", 500)
        go.set()
        await peer.answer_to(call)
        assert not peer.connection.session.incoming_requests


def story(observer: RecordingObserver) -> list[tuple[str, str]]:
    """The facts of calls, in order: each with its method or outcome."""
    told: list[tuple[str, str]] = []
    for fact in observer.facts:
        match fact:
            case Received():
                told.append(("received", ""))
            case CallStarted(method=method):
                told.append(("started", method))
            case SubscriptionStep(step=step):
                told.append(("step", step))
            case CallEnded(outcome=outcome):
                told.append(("ended", outcome))
    return told


async def test_tool_call_facts_are_in_order() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])
    steps: list[str] = []

    @server.tool
    async def sql_query(query: str, ctx: Context) -> list[str]:
        steps.append(f"handler of {ctx.request_id}: {query}")
        return ["row"]

    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.quiet()
        observer.facts.clear()
        answer = await peer.request("tools/call", {"name": "sql_query", "arguments": {"query": "SELECT *"}}, id=1)
    assert answer["result"]["structuredContent"] == {"result": ["row"]}
    assert steps == ["handler of 1: SELECT *"]
    assert story(observer) == [("received", ""), ("started", "tools/call"), ("ended", "ok")]


@pytest.mark.row("P24")
async def test_subscription_facts_are_in_order() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])
    server.add_resource("weather://city", "sunny")
    async with RawPeer(server) as peer:
        await peer.initialize()
        await peer.quiet()
        observer.facts.clear()
        assert await peer.result("resources/subscribe", {"uri": "weather://city"}) == {}
        server.notify_updated("weather://city")
        update = await peer.receive()
    assert update == {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": "weather://city"},
    }
    assert story(observer) == [
        ("received", ""),
        ("started", "resources/subscribe"),
        ("step", "RegisterSubscription"),
        ("step", "SetupWatcher"),
        ("step", "ConfirmSubscription"),
        ("ended", "ok"),
    ]


async def test_replaced_feature_reports_its_errors() -> None:
    raised = [InvalidParams("not like this"), MethodNotFound("logging/setLevel"), Refusal(1008, "not now")]
    asked: list[object] = []

    def fake(_connection: object, _call: object, params: object) -> None:
        asked.append(params)
        raise raised[len(asked) - 1]

    observer = RecordingObserver()
    features = [feature for feature in FEATURES if feature.name != "logging"]
    server = Server("t", features=[*features, Feature("logging", {"logging/setLevel": fake})], observers=[observer])
    async with RawPeer(server) as peer:
        await peer.initialize()
        codes = [(await peer.error("logging/setLevel", {"level": "info"}))["code"] for _ in raised]
    assert codes == [-32602, -32601, 1008]
    ended = [fact for fact in observer.of(CallEnded) if fact.method == "logging/setLevel"]
    assert [(fact.outcome, fact.code) for fact in ended] == [("error", code) for code in codes]
    assert len(asked) == 3


async def test_params_are_checked_before_handler() -> None:
    asked: list[object] = []
    features = [feature for feature in FEATURES if feature.name != "logging"]
    spy = Feature("logging", {"logging/setLevel": lambda *given: asked.append(given)})
    async with RawPeer(Server("t", features=[*features, spy])) as peer:
        await peer.initialize()
        assert (await peer.error("logging/setLevel", {"level": "loud"}))["code"] == -32602
    assert asked == []


# --- ids -----------------------------------------------------------------------------------------


async def test_id_in_use_is_refused_until_answered() -> None:
    go = asyncio.Event()
    server = Server("t")

    @server.tool
    async def slow() -> str:
        await go.wait()
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize()
        peer.call("tools/call", {"name": "slow"}, id=77)
        conflict = await peer.request("tools/call", {"name": "slow"}, id=77)
        assert (conflict["error"]["code"], conflict["error"]["data"]["kind"]) == (-32600, "request_id_conflict")
        go.set()
        assert text(await peer.answer_to(77)) == "done"
        assert text(await peer.request("tools/call", {"name": "slow"}, id=77)) == "done"


@pytest.mark.row("A06")
async def test_server_request_ids_start_at_1_per_connection() -> None:
    server = asking()
    for _ in range(2):
        async with RawPeer(server) as peer:
            await peer.initialize()
            for expected in (1, 2):
                call = peer.call("tools/call", {"name": "ask"})
                asked = await peer.receive()
                assert (asked["id"], asked["method"]) == (expected, "ping")
                peer.reply(asked, {})
                assert text(await peer.answer_to(call)) == "answered"
