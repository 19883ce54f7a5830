"""Elicitation forms of 2025-11-25: each kind of field, choice and default, derived from types."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from trunkline import Client, Context, EnumNames, Server, Titles, UrlElicitationRequired
from trunkline.client.elicitation import Question
from trunkline.errors import MisuseError, PeerError
from trunkline.server.input.ask import ClientLacksCapability
from trunkline.testing import RawPeer

FORMS = {"elicitation": {}}


class Status(Enum):
    ACTIVE = "active"
    INACTIVE = "inactive"
    PENDING = "pending"


@dataclass
class Defaults:
    """The form of the conformance suite for SEP-1034."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


class Enums(Struct, rename="camel"):
    """The form of the conformance suite for SEP-1330."""

    untitled_single: Literal["option1", "option2", "option3"]
    titled_single: Annotated[Literal["value1", "value2"], Titles(value1="First", value2="Second")]
    legacy_enum: Annotated[Literal["opt1", "opt2"], EnumNames(opt1="Option One", opt2="Option Two")]
    untitled_multi: list[Literal["option1", "option2", "option3"]]
    titled_multi: Annotated[list[Literal["value1", "value2"]], Titles(value1="First", value2="Second")]


@dataclass
class Chosen:
    plain: Status
    sets: Annotated[set[Status], Meta(min_length=1, max_length=2)] = field(default_factory=lambda: {Status.PENDING})
    inner: list[Annotated[Literal["b", "a"], Titles({"b": "Bee"})]] = field(default_factory=list)


async def ask(wanted: Any, content: Any, revision: str = "2025-11-25") -> tuple[Any, Any]:
    """Return the form that the client gets and the value that the handler gets."""
    server, outcome = Server("t", observers=[]), []

    @server.tool
    async def asks(ctx: Context) -> str:
        try:
            outcome.append(await ctx.elicit("?", wanted))
        except (MisuseError, PeerError) as error:
            outcome.append(error)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(revision, FORMS)
        call = peer.call("tools/call", {"name": "asks"})
        question = await peer.receive()
        if "method" in question:
            peer.reply(question, {"action": "accept", "content": content})
            await peer.answer_to(call)
        return question.get("params", {}).get("requestedSchema"), outcome[0]


@pytest.mark.parametrize(
    ("wanted", "filled", "data"),
    [
        (str, {"value": "x"}, "x"),
        (bool, {"value": True}, True),
        (Literal["a", "b"], {"value": "a"}, "a"),
        (Status, {"value": "pending"}, Status.PENDING),
        (list[Literal["a", "b"]], {"value": ["a", "b"]}, ["a", "b"]),
        (list[Status], {"value": ["active"]}, [Status.ACTIVE]),
        (str | None, {}, None),
        (None, {}, None),
    ],
)
async def test_single_value_form_in_both_eras(revision: str, wanted: Any, filled: Any, data: Any) -> None:
    server, outcome, asked = Server("t", observers=[]), [], []

    @server.tool
    async def asks(ctx: Context) -> str:
        outcome.append(await ctx.elicit("?", wanted))
        return "done"

    async def fill(question: Question) -> Any:
        asked.append([field.name for field in question.fields])
        return filled

    async with Client(server, elicitation=fill, revision=revision) as client:
        assert (await client.call_tool("asks")).text == "done"
    assert asked == [[] if wanted is None else ["value"]]
    assert (outcome[0].action, outcome[0].data) == ("accept", data)


async def test_list_value_needs_a_client_with_multiple_choice() -> None:
    _, outcome = await ask(list[Status], {}, "2025-06-18")
    assert isinstance(outcome, ClientLacksCapability)
    shown, outcome = await ask(Status, {"value": "active"}, "2025-06-18")
    assert shown["properties"]["value"]["enum"] == ["active", "inactive", "pending"]
    assert outcome.data is Status.ACTIVE


@pytest.mark.row("ELI-05", "H02")
@pytest.mark.off_the_record  # the official schema wants whole numbers as defaults, the suite and the prose do not
async def test_primitive_defaults_follow_sep1034() -> None:
    shown, answer = await ask(Defaults, {})
    assert shown == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
    }
    assert answer.data == Defaults()


@pytest.mark.row("ELI-04", "H02")
async def test_choice_schemas_follow_sep1330() -> None:
    content = {
        "untitledSingle": "option2",
        "titledSingle": "value1",
        "legacyEnum": "opt2",
        "untitledMulti": ["option1", "option3"],
        "titledMulti": [],
    }
    shown, answer = await ask(Enums, content)
    titled = [{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}]
    assert shown["properties"] == {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    assert shown["required"] == list(content)
    assert answer.data == Enums("option2", "value1", "opt2", ["option1", "option3"], [])


@pytest.mark.row("ELI-04", "H02")
async def test_multiple_choice_as_set_with_bounds_and_default() -> None:
    shown, answer = await ask(Chosen, {"plain": "active", "sets": ["active", "inactive"], "inner": ["a"]})
    values = ["active", "inactive", "pending"]
    assert shown["properties"]["plain"]["enum"] == values
    assert shown["properties"]["sets"] == {
        "type": "array",
        "items": {"type": "string", "enum": values},
        "minItems": 1,
        "maxItems": 2,
        "default": ["pending"],
    }
    assert shown["properties"]["inner"] == {
        "type": "array",
        "items": {"anyOf": [{"const": "b", "title": "Bee"}, {"const": "a", "title": "a"}]},
        "default": [],
    }
    assert answer.data == Chosen(Status.ACTIVE, {Status.ACTIVE, Status.INACTIVE}, ["a"])


@pytest.mark.row("ELI-15", "H02")
@pytest.mark.parametrize(
    "content",
    [
        {"plain": "gone"},
        {"plain": "active", "sets": []},
        {"plain": "active", "sets": ["active", "inactive", "pending"]},
        {"plain": "active", "inner": ["c"]},
        {},
    ],
)
async def test_unoffered_choice_raises_peer_error(content: Any) -> None:
    _, answer = await ask(Chosen, content)
    assert isinstance(answer, PeerError)
    assert answer.code == -32602


@pytest.mark.row("ELI-04")
async def test_titles_become_enum_names_in_2025_06_18() -> None:
    @dataclass
    class Older:
        one: Annotated[Literal["a", "b"], Titles(a="A")] = "a"
        many: list[Literal["a", "b"]] = field(default_factory=list)

    shown, answer = await ask(Older, {"one": "b"}, "2025-06-18")
    assert shown["properties"] == {"one": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "b"]}}
    assert answer.data == Older("b", [])


@pytest.mark.row("ELI-04")
@pytest.mark.parametrize("by_hand", [False, True])
async def test_required_multiple_choice_field_fails_for_old_clients(by_hand: bool) -> None:
    @dataclass
    class Needed:
        one: Literal["a", "b"]
        many: list[Literal["a", "b"]]

    items = {"type": "string", "enum": ["a", "b"]}
    schema = {"type": "object", "properties": {"many": {"type": "array", "items": items}}, "required": ["many"]}
    wanted = schema if by_hand else Needed
    shown, error = await ask(wanted, {}, "2025-06-18")
    assert shown is None
    assert isinstance(error, ClientLacksCapability)
    assert error.message == (
        "the client does not support a choice of several values, which field 'many' is; 2025-06-18 has none"
    )
    assert (await ask(wanted, {"one": "a", "many": ["b"]}))[0]["required"][-1] == "many"


@pytest.mark.row("ELI-15")
async def test_answer_is_validated_against_handwritten_schema() -> None:
    wanted = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}
    _, answer = await ask(wanted, {"n": 2})
    assert isinstance(answer, PeerError)
    assert "n: 2 is less than the minimum" in answer.message
    assert (await ask(wanted, {"n": 3}))[1].data == {"n": 3}


@pytest.mark.row("ELI-10", "H01")
@pytest.mark.parametrize(
    ("revision", "code"),
    [("2025-11-25", -32042), ("2025-06-18", -32603), ("2025-03-26", -32603), ("2024-11-05", -32603)],
)
async def test_url_elicitation_from_message_url_pairs(revision: str, code: int) -> None:
    server = Server("t")

    @server.tool
    async def locked() -> str:
        raise UrlElicitationRequired.of(("Sign in", "https://a.example/in"), ("Pay", "https://b.example/pay"))

    async with RawPeer(server) as peer:
        await peer.initialize(revision, {"elicitation": {"form": {}, "url": {}}})
        error = await peer.error("tools/call", {"name": "locked"})
    assert error["code"] == code
    first, second = error["data"]["elicitations"]
    assert (first["mode"], first["message"], first["url"]) == ("url", "Sign in", "https://a.example/in")
    assert second["url"] == "https://b.example/pay"
    assert len({first["elicitationId"], second["elicitationId"]}) == 2
