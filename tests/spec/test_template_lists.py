"""Templates that list their resources, completion from a list, and prompts with types."""

from typing import Annotated, Any, Literal

import pytest

from trunkline import Context, Depends, Server, Settings, matching
from trunkline.errors import RegistrationError
from trunkline.protocol.types import Resource
from trunkline.testing import RawPeer


def with_list(lister: Any, **settings: Any) -> Server:
    server = Server("t", observers=[], settings=Settings(**settings))
    server.add_resource("x://static", "s")

    @server.resource("x://{ident}", mime_type="text/x-item", list=lister)
    async def item(ident: str) -> str:
        return ident

    return server


async def listed(server: Server, **params: Any) -> Any:
    async with RawPeer(server) as peer:
        await peer.initialize()
        return await peer.result("resources/list", params)


def plain() -> list[Any]:
    return ["x://1", Resource(uri="x://2", name="two", mime_type="text/html"), "x://static", "x://1"]


async def waits() -> list[Any]:
    return plain()


async def asks(ctx: Context) -> list[Any]:
    assert ctx.client.info is not None
    return plain()


def gives_awaitable() -> Any:
    return waits()


async def needs(found: Annotated[list[Any], Depends(plain)]) -> list[Any]:
    return found


def needs_plainly(found: Annotated[list[Any], Depends(waits)]) -> list[Any]:
    return found


@pytest.mark.row("R01", "R10")
@pytest.mark.parametrize("lister", [plain, waits, asks, gives_awaitable, needs, needs_plainly])
async def test_template_lists_its_resources(lister: Any) -> None:
    assert (await listed(with_list(lister)))["resources"] == [
        {"uri": "x://static", "name": "x://static"},
        {"uri": "x://1", "name": "x://1", "mimeType": "text/x-item"},
        {"uri": "x://2", "name": "two", "mimeType": "text/html"},
    ]


@pytest.mark.row("R01")
async def test_resource_of_two_templates_is_listed_once() -> None:
    server = with_list(lambda: ["x://1"])
    server.add_resource("x://{a}/{b}", lambda a, b: a, list=lambda: [Resource(uri="x://1", name="other"), "x://2/3"])
    found = (await listed(server))["resources"]
    assert [(resource["uri"], resource["name"]) for resource in found[1:]] == [
        ("x://1", "x://1"),
        ("x://2/3", "x://2/3"),
    ]


@pytest.mark.row("R01")
async def test_lister_runs_for_each_list_request() -> None:
    numbers = iter(range(9))
    server = with_list(lambda: [f"x://{next(numbers)}"])
    assert [(await listed(server))["resources"][1]["uri"] for _ in range(2)] == ["x://0", "x://1"]


@pytest.mark.row("Y05")
async def test_pagination_continues_through_template_lists() -> None:
    server = with_list(lambda: [f"x://{n}" for n in range(5)], page_size=2)
    async with RawPeer(server) as peer:
        await peer.initialize()
        pages, params = [], {}
        while True:
            page = await peer.result("resources/list", params)
            pages.append([resource["uri"] for resource in page["resources"]])
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert pages == [["x://static", "x://0"], ["x://1", "x://2"], ["x://3", "x://4"]]
        for name in ("a", "b"):
            server.add_resource(f"x://{name}", name)
        first = await peer.result("resources/list")
        assert [resource["uri"] for resource in first["resources"]] == ["x://static", "x://a"]
        second = await peer.result("resources/list", {"cursor": first["nextCursor"]})
        assert [resource["uri"] for resource in second["resources"]] == ["x://b", "x://0"]
        assert (await peer.error("resources/list", {"cursor": "junk"}))["data"]["kind"] == "invalid_cursor"
        assert (await peer.error("resources/list", {"limit": 0}))["data"]["kind"] == "invalid_page_size"


@pytest.mark.row("R16")
@pytest.mark.parametrize("value", [None, "x://1", [1], ["no uri"], 5])
async def test_invalid_lister_result_is_an_internal_error(value: Any) -> None:
    async with RawPeer(with_list(lambda: value)) as peer:
        await peer.initialize()
        assert (await peer.error("resources/list"))["code"] == -32603


def test_lister_is_for_templates_and_takes_no_arguments() -> None:
    server = Server("t")
    with pytest.raises(RegistrationError, match="list= is for templates"):
        server.add_resource("x://one", "value", list=plain)
    with pytest.raises(RegistrationError, match="its argument 'n'"):
        server.add_resource("x://{ident}", lambda ident: ident, list=lambda n: [n])


# --- completion ----------------------------------------------------------------------------------------


@pytest.mark.row("C03")
@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("", ["Paris", "Aspen", "Oslo", "paradise"]),
        ("par", ["Paris", "paradise"]),
        ("AS", ["Aspen"]),
        ("s", ["Paris", "Aspen", "Oslo", "paradise"]),
        ("P", ["Paris", "paradise", "Aspen"]),
        ("x", []),
    ],
)
def test_prefix_matches_precede_substring_matches(value: str, found: list[str]) -> None:
    assert matching(value, ["Paris", "Aspen", "Oslo", "paradise"]) == found


@pytest.mark.row("C01", "C05")
async def test_argument_is_completed_from_a_list() -> None:
    server = Server("t")
    server.add_prompt("Visit {city} and {country}", name="trip")
    server.add_completion([f"city {n}" for n in range(150)], prompt="trip", argument="city")
    server.add_completion(lambda value: matching(value, ["Peru"]), prompt="trip", argument="country")
    async with RawPeer(server) as peer:
        await peer.initialize()

        async def complete(argument: str, value: str) -> Any:
            ref = {"type": "ref/prompt", "name": "trip"}
            params = {"ref": ref, "argument": {"name": argument, "value": value}}
            return (await peer.result("completion/complete", params))["completion"]

        assert await complete("city", "149") == {"values": ["city 149"], "total": 1, "hasMore": False}
        everything = await complete("city", "CITY")
        assert (len(everything["values"]), everything["total"], everything["hasMore"]) == (100, 150, True)
        assert (await complete("country", "p"))["values"] == ["Peru"]


@pytest.mark.row("C04")
def test_single_string_is_not_a_list_of_values() -> None:
    with pytest.raises(RegistrationError, match="not one text"):
        Server("t").add_completion("abc", prompt="p", argument="a")
    with pytest.raises(RegistrationError, match="completion needs one of"):
        Server("t").add_completion(["abc"], argument="a")


# --- typed arguments of prompts --------------------------------------------------------------------------


@pytest.mark.row("M03", "M04")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": "3", "loud": "true", "style": "long"}, "3 True long"),
        ({"count": "-1", "loud": "0", "ratio": "0.5"}, "-1 False short"),
        ({"count": "7"}, "7 False short"),
        ({"count": "three"}, None),
        ({"count": "3", "loud": "maybe"}, None),
        ({"count": "3", "style": "middling"}, None),
        ({}, None),
    ],
)
async def test_prompt_arguments_are_converted_to_their_types(arguments: Any, text: str | None) -> None:
    server = Server("t", observers=[])

    @server.prompt
    def typed(count: int, loud: bool = False, style: Literal["short", "long"] = "short", ratio: float = 1.0) -> str:
        assert type(count) is int
        return f"{count} {loud} {style}"

    async with RawPeer(server) as peer:
        await peer.initialize()
        (prompt,) = (await peer.result("prompts/list"))["prompts"]
        assert prompt["arguments"][0] == {"name": "count", "required": True}
        answer = await peer.request("prompts/get", {"name": "typed", "arguments": arguments})
    if text is None:
        assert answer["error"]["code"] == -32602
    else:
        assert answer["result"]["messages"][0]["content"]["text"] == text
