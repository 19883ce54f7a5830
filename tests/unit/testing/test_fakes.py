"""The fake model and the fake user."""

import re
from dataclasses import dataclass

import pytest

from trunkline import Context, Server
from trunkline.errors import TrunklineError
from trunkline.protocol.types import CreateMessageParams
from trunkline.testing import FakeModel, FakeUser, connect


@dataclass
class Size:
    """A form."""

    size: int
    colour: str
    kind: str = "shirt"


@pytest.fixture
def server() -> Server:
    server = Server("t", observers=[])

    @server.tool
    async def ask_model(question: str, ctx: Context) -> str:
        return (await ctx.sample(question)).text

    @server.tool
    async def ask_user(ctx: Context) -> str:
        answer = await ctx.elicit("Which size?", Size)
        return f"{answer.action} {answer.data}"

    return server


async def test_fake_model_answers_in_order_and_records_requests(server: Server, revision: str) -> None:
    model = FakeModel(["one", lambda params: f"{len(params.messages)} message"])
    async with connect(server, model=model, revision=revision) as client:
        assert (await client.call_tool("ask_model", {"question": "first?"})).data == "one"
        assert model.unused == 1
        assert (await client.call_tool("ask_model", {"question": "second?"})).data == "1 message"
    assert model.prompts == ["first?", "second?"]
    assert isinstance(model.requests[0], CreateMessageParams)
    assert model.unused == 0
    assert repr(model) == "<FakeModel: 2 of 2 answers given>"


async def test_fake_model_without_answers_fails_the_test(server: Server, revision: str) -> None:
    async with connect(server, model=FakeModel(), revision=revision) as client:
        with pytest.raises(
            TrunklineError, match=re.escape("the fake model has 0 answers, and this is request 1: 'hm?'")
        ):
            await client.call_tool("ask_model", {"question": "hm?"})


async def test_fake_model_raises_an_error_that_is_its_answer(server: Server) -> None:
    async with connect(server, model=FakeModel([ValueError("overloaded")])) as client:
        with pytest.raises(TrunklineError, match="overloaded"):
            await client.call_tool("ask_model", {"question": "hm?"})


async def test_fake_user_fills_in_forms_and_records_them(server: Server, revision: str) -> None:
    user = FakeUser({"size": 3, "colour": "red", "other": True})
    async with connect(server, user=user, revision=revision) as client:
        assert (await client.call_tool("ask_user")).data == "accept Size(size=3, colour='red', kind='shirt')"
    assert user.messages == ["Which size?"]
    assert [field.name for field in user.questions[0].fields] == ["size", "colour", "kind"]
    assert repr(user) == "<FakeUser: 1 forms, 0 URLs>"


async def test_fake_user_declines_and_cancels_in_order(server: Server) -> None:
    async with connect(server, user=FakeUser([None, "cancel", "decline"])) as client:
        said = [(await client.call_tool("ask_user")).data.split()[0] for _ in range(3)]
        assert said == ["decline", "cancel", "decline"]
        with pytest.raises(TrunklineError, match="the fake user has 3 answers, and this is form 4: 'Which size"):
            await client.call_tool("ask_user")


async def test_fake_user_names_the_field_without_a_value(server: Server) -> None:
    async with connect(server, user=FakeUser({"size": 3})) as client:
        with pytest.raises(TrunklineError, match="the fake user has no value for 'colour' in the form 'Which size"):
            await client.call_tool("ask_user")


@pytest.mark.parametrize(("opens", "action"), [(True, "accept"), (False, "decline")])
async def test_fake_user_agrees_to_open_urls(opens: bool, action: str) -> None:
    server = Server("t")

    @server.tool
    async def pay(ctx: Context) -> str:
        return (await ctx.elicit_url("Pay here", "http://127.0.0.1/pay")).action

    user = FakeUser(opens_urls=opens)
    async with connect(server, user=user) as client:
        assert (await client.call_tool("pay")).data == action
    assert [url.host for url in user.urls] == ["127.0.0.1"]
