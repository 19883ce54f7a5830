"""Listed means callable: under any rule and for any caller, the listed entries are the callable ones."""

from typing import Any

from hypothesis import given
from hypothesis.strategies import booleans, fixed_dictionaries, frozensets, lists, none, sampled_from
from tests.modern import enveloped

from trunkline import Context, Server
from trunkline.auth.principal import Principal
from trunkline.testing import RawPeer

SCOPES = ("read", "write", "admin")
PEOPLE = ("ann", "bob")


def is_ann(ctx: Context) -> bool:
    return ctx.principal is None or ctx.principal.subject == "ann"


async def is_bob(ctx: Context) -> bool:
    return ctx.principal is not None and ctx.principal.subject == "bob"


def fails(ctx: Context) -> bool:
    raise ValueError("no")


RULES = fixed_dictionaries(
    {
        "scopes": none() | frozensets(sampled_from(SCOPES)).map(sorted),
        "allow": sampled_from([None, is_ann, is_bob, fails]),
    }
)
PRINCIPALS = none() | fixed_dictionaries(
    {"subject": sampled_from(PEOPLE), "scopes": frozensets(sampled_from(SCOPES))}
).map(lambda given: Principal(given["subject"], scopes=given["scopes"]))


def offering(rules: list[dict[str, Any]], *, listing: bool) -> Server:
    """One entry of each kind for every rule."""
    server = Server("s", observers=[])
    for number, rule in enumerate(rules):
        server.add_tool(lambda: "x", name=f"t{number}", thread=False, **rule)
        server.add_prompt("x", name=f"p{number}", **rule)
        server.add_resource(f"r:{number}", "x", **rule)
        shown = (lambda number=number: [f"m{number}:1"]) if listing else None
        server.add_resource(f"m{number}:{{x}}", lambda x: x, thread=False, list=shown, **rule)
    return server


def served(answer: Any) -> bool:
    return "result" in answer and not answer["result"].get("isError")


@given(lists(RULES, min_size=1, max_size=4), lists(PRINCIPALS, min_size=1, max_size=3), booleans(), booleans())
async def test_listed_tools_are_callable(
    rules: list[dict[str, Any]], principals: list[Principal | None], modern: bool, listing: bool
) -> None:
    server, numbers = offering(rules, listing=listing), range(len(rules))
    for principal in principals:
        async with RawPeer(server, principal=principal) as peer:
            if not modern:
                await peer.initialize()

            async def ask(method: str, peer: RawPeer = peer, **params: Any) -> Any:
                return await peer.request(method, enveloped(**params) if modern else params)

            async def shown(method: str, member: str, key: str, ask: Any = ask) -> set[str]:
                return {entry[key] for entry in (await ask(method))["result"][member]}

            async def callable_of(method: str, key: str, names: list[str], ask: Any = ask) -> set[str]:
                return {name for name in names if served(await ask(method, **{key: name}))}

            tools = await callable_of("tools/call", "name", [f"t{n}" for n in numbers])
            assert await shown("tools/list", "tools", "name") == tools
            prompts = await callable_of("prompts/get", "name", [f"p{n}" for n in numbers])
            assert await shown("prompts/list", "prompts", "name") == prompts
            resources = await callable_of("resources/read", "uri", [f"r:{n}" for n in numbers])
            members = await callable_of("resources/read", "uri", [f"m{n}:1" for n in numbers])
            assert await shown("resources/list", "resources", "uri") == resources | (members if listing else set())
            templates = await shown("resources/templates/list", "resourceTemplates", "uriTemplate")
            assert templates == {member[:-1] + "{x}" for member in members}
            assert {len(each) for each in (tools, prompts, resources, members)} == {len(tools)}
            assert tools == {f"t{n}" for n in numbers if expected_access(principal, **rules[n])}


def expected_access(principal: Principal | None, scopes: list[str] | None, allow: Any) -> bool:
    """The same rule in its simplest form."""
    covered = principal is None or principal.scopes >= set(scopes or ())
    subject = None if principal is None else principal.subject
    return covered and {None: True, is_ann: subject != "bob", is_bob: subject == "bob", fails: False}[allow]
