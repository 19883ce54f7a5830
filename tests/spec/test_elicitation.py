"""Elicitation: a server asks the client's user, by a form or by a URL."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from msgspec import Meta, Struct

from trunkline import Context, Server, UrlElicitationRequired
from trunkline.errors import MisuseError, PeerError
from trunkline.server.input.ask import ClientLacksCapability
from trunkline.server.input.forms import ElicitationAnswer
from trunkline.testing import ManualClock, RawPeer

FORMS = {"elicitation": {}}
BOTH = {"elicitation": {"form": {}, "url": {}}}


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Order:
    name: Annotated[str, Meta(min_length=1, description="Who orders")]
    count: int = 1
    gift: bool = False
    size: Size = Size.SMALL
    note: str | None = None


class OrderStruct(Struct):
    name: Annotated[str, Meta(min_length=1, description="Who orders")]
    count: int = 1


class OrderDict(TypedDict):
    name: str
    price: float


class Asker:
    """A server with one tool that elicits, and its outcome."""

    def __init__(self, wanted: Any, *, clock: ManualClock | None = None, thread: bool = False) -> None:
        self.server = Server("t", observers=[], clock=clock)
        self.outcome: Any = None

        async def ask(ctx: Context) -> str:
            try:
                self.outcome = await ctx.elicit("Please fill in", wanted)
            except Exception as error:
                self.outcome = error
            return "done"

        def ask_on_thread(ctx: Context) -> str:
            self.outcome = ctx.wait(ctx.elicit("Please fill in", wanted))
            return "done"

        self.server.add_tool(ask_on_thread if thread else ask, name="ask")

    async def asked(self, peer: RawPeer, answer: Any) -> Any:
        call = peer.call("tools/call", {"name": "ask"})
        request = await peer.receive()
        assert request["method"] == "elicitation/create"
        peer.reply(request, answer)
        await peer.answer_to(call)
        return request["params"]


@pytest.mark.row("ELI-02", "ELI-03", "H02")
async def test_dataclass_form_returns_a_dataclass() -> None:
    asker = Asker(Order)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(capabilities=FORMS)
        content = {"name": "Ada", "count": 3, "size": "large"}
        params = await asker.asked(peer, {"action": "accept", "content": content})
    assert params["message"] == "Please fill in"
    assert params.get("mode", "form") == "form"
    assert params["requestedSchema"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "description": "Who orders"},
            "count": {"type": "integer", "default": 1},
            "gift": {"type": "boolean", "default": False},
            "size": {"type": "string", "enum": ["small", "large"], "title": "Size", "default": "small"},
            "note": {"type": "string"},
        },
        "required": ["name"],
    }
    assert asker.outcome == ElicitationAnswer("accept", Order("Ada", 3, False, Size.LARGE))
    assert asker.outcome.accepted


@pytest.mark.row("H02")
@pytest.mark.parametrize(
    ("wanted", "content", "data"),
    [
        (OrderStruct, {"name": "Ada"}, OrderStruct("Ada")),
        (OrderDict, {"name": "Ada", "price": 1.5}, {"name": "Ada", "price": 1.5}),
        (
            {"type": "object", "properties": {"name": {"type": "string", "format": "email"}}, "required": ["name"]},
            {"name": "a@b.c"},
            {"name": "a@b.c"},
        ),
    ],
    ids=["Struct", "TypedDict", "schema"],
)
@pytest.mark.parametrize("thread", [False, True], ids=["async", "thread"])
async def test_form_from_struct_typed_dict_or_schema(wanted: Any, content: Any, data: Any, *, thread: bool) -> None:
    asker = Asker(wanted, thread=thread)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(capabilities=FORMS)
        params = await asker.asked(peer, {"action": "accept", "content": content})
    assert params["requestedSchema"]["properties"]["name"]["type"] == "string"
    assert asker.outcome == ElicitationAnswer("accept", data)


@pytest.mark.row("ELI-06", "H02")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_user_may_decline_or_cancel(action: str) -> None:
    asker = Asker(Order)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(capabilities=FORMS)
        await asker.asked(peer, {"action": action})
    assert asker.outcome == ElicitationAnswer(action, None)
    assert not asker.outcome.accepted


@pytest.mark.row("ELI-15")
async def test_invalid_answer_raises_peer_error() -> None:
    asker = Asker(Order)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(capabilities=FORMS)
        await asker.asked(peer, {"action": "accept", "content": {"name": ""}})
    assert isinstance(asker.outcome, PeerError)
    assert asker.outcome.code == -32602


@pytest.mark.row("ELI-02")
async def test_nested_form_is_rejected_before_sending() -> None:
    class Nested(Struct):
        order: OrderStruct

    asker = Asker(Nested)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(capabilities=FORMS)
        await peer.result("tools/call", {"name": "ask"})
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []
    assert isinstance(asker.outcome, MisuseError)


@pytest.mark.row("ELI-04", "ELI-05")
async def test_choices_and_defaults_in_2025_06_18_format() -> None:
    class Choice(Struct):
        colour: Literal["red", "green"] = "red"
        sure: bool = True

    asker = Asker(Choice)
    async with RawPeer(asker.server) as peer:
        await peer.initialize("2025-06-18", FORMS)
        params = await asker.asked(peer, {"action": "accept", "content": {"colour": "green"}})
    assert "mode" not in params
    assert params["requestedSchema"]["properties"]["sure"] == {"type": "boolean", "default": True}
    assert params["requestedSchema"]["properties"]["colour"] == {"type": "string", "enum": ["red", "green"]}
    assert asker.outcome.data == Choice("green", True)


@pytest.mark.row("ELI-01")
@pytest.mark.parametrize(
    ("revision", "declared", "lacks"),
    [
        ("2025-11-25", {}, "elicitation"),
        ("2025-11-25", {"elicitation": {"url": {}}}, "elicitation.form"),
        ("2025-03-26", FORMS, "elicitation"),
        ("2024-11-05", FORMS, "elicitation"),
    ],
)
async def test_client_without_forms_is_not_asked(revision: str, declared: Any, lacks: str) -> None:
    asker = Asker(Order)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(revision, declared)
        await peer.result("tools/call", {"name": "ask"})
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []
    assert isinstance(asker.outcome, ClientLacksCapability)
    assert asker.outcome.capability == lacks


@pytest.mark.row("X07")
async def test_elicitation_suspends_the_call_deadline() -> None:
    clock = ManualClock()
    asker = Asker(OrderStruct, clock=clock)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(capabilities=FORMS)
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        clock.advance(3000)  # a call has 60 s otherwise
        assert await peer.quiet() == []
        peer.reply(asked, {"action": "accept", "content": {"name": "Ada"}})
        assert (await peer.answer_to(call))["result"]["isError"] is False
    assert asker.outcome.accepted


@pytest.mark.row("X07")
async def test_elicitation_times_out_after_an_hour() -> None:
    clock = ManualClock()
    asker = Asker(OrderStruct, clock=clock)
    async with RawPeer(asker.server) as peer:
        await peer.initialize(capabilities=FORMS)
        call = peer.call("tools/call", {"name": "ask"})
        asked = await peer.receive()
        clock.advance(3600)
        assert (await peer.answer_to(call))["result"]["isError"] is True
        gone = [message for message in await peer.quiet() if "method" in message]
        assert [message["params"]["requestId"] for message in gone] == [asked["id"]]


@pytest.mark.row("X07")
async def test_answer_renews_the_call_deadline() -> None:
    clock = ManualClock()
    server = Server("t", clock=clock)

    @server.tool(timeout=5)
    async def ask_often(ctx: Context) -> str:
        for _ in range(3):
            await ctx.elicit("?", OrderStruct)
        return f"{ctx.deadline:g} s left"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FORMS)
        call = peer.call("tools/call", {"name": "ask_often"})
        for _ in range(3):
            asked = await peer.receive()
            clock.advance(4)
            peer.reply(asked, {"action": "accept", "content": {"name": "Ada"}})
        assert (await peer.answer_to(call))["result"]["content"][0]["text"] == "5 s left"


# --- URLs --------------------------------------------------------------------------------------------------


@pytest.mark.row("ELI-08", "H02")
async def test_url_elicitation_and_its_completion() -> None:
    server, outcome = Server("t"), []

    @server.tool
    async def sign_in(ctx: Context) -> str:
        outcome.append(await ctx.elicit_url("Sign in", "https://example.org/in", elicitation_id="e-1"))
        outcome.append(await ctx.elicit_url("Again", "https://example.org/in"))
        await ctx.elicitation_complete("e-1")
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=BOTH)
        call = peer.call("tools/call", {"name": "sign_in"})
        first = await peer.receive()
        assert first["params"] == {
            "mode": "url",
            "message": "Sign in",
            "url": "https://example.org/in",
            "elicitationId": "e-1",
        }
        peer.reply(first, {"action": "accept"})
        second = await peer.receive()
        assert len(second["params"]["elicitationId"]) > 16
        peer.reply(second, {"action": "decline"})
        await peer.answer_to(call)
        (complete,) = peer.waiting()
        assert complete["method"] == "notifications/elicitation/complete"
        assert complete["params"] == {"elicitationId": "e-1"}
    assert outcome == [ElicitationAnswer("accept"), ElicitationAnswer("decline")]


@pytest.mark.row("ELI-08")
async def test_invalid_url_is_not_sent() -> None:
    server, raised = Server("t", observers=[]), []

    @server.tool
    async def send(ctx: Context) -> None:
        for url in ("example.com/sign-in", "", "https://a b"):
            try:
                await ctx.elicit_url("Please sign in", url)
            except MisuseError as error:
                raised.append(str(error).partition(":")[0])

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities={"elicitation": {"url": {}}})
        await peer.result("tools/call", {"name": "send"})
    assert raised == [
        "invalid URL for elicitation 'example.com/sign-in'",
        "invalid URL for elicitation ''",
        "invalid URL for elicitation 'https",
    ]


@pytest.mark.row("ELI-01")
async def test_url_is_sent_only_to_clients_that_declare_it() -> None:
    server, lacks = Server("t"), []

    @server.tool
    async def sign_in(ctx: Context) -> str:
        with pytest.raises(ClientLacksCapability) as error:
            await ctx.elicit_url("Sign in", "https://example.org/in")
        lacks.append(error.value.capability)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=FORMS)
        await peer.result("tools/call", {"name": "sign_in"})
    assert lacks == ["elicitation.url"]


@pytest.mark.row("ELI-10", "H01")
@pytest.mark.parametrize(
    ("revision", "code"),
    [("2025-11-25", -32042), ("2025-06-18", -32603), ("2025-03-26", -32603), ("2024-11-05", -32603)],
)
async def test_tool_may_require_a_url_visit(revision: str, code: int) -> None:
    server = Server("t")
    step = {"mode": "url", "message": "Sign in", "url": "https://example.org/in", "elicitationId": "e-1"}

    @server.tool
    async def locked() -> str:
        raise UrlElicitationRequired([step])

    async with RawPeer(server) as peer:
        await peer.initialize(revision, BOTH)
        error = await peer.error("tools/call", {"name": "locked"})
    assert error["code"] == code
    assert error["data"]["kind"] == "url_elicitation_required"
    assert error["data"]["elicitations"] == [step]
