"""A proxy that is mounted into another server."""

import asyncio
from typing import Any

import pytest
from tests.limits import PATIENCE
from tests.unit.proxies.test_eras import HANDSHAKE, MODERN, make_proxy, make_server

from trunkline import Call, Client, Next, Server


@pytest.mark.parametrize("front", [HANDSHAKE, MODERN])
@pytest.mark.parametrize("behind", [HANDSHAKE, MODERN])
async def test_mounted_proxy_forwards_under_its_prefix(front: str, behind: str) -> None:
    server, parent, progress = make_server(), Server("parent"), list[Any]()
    parent.mount(make_proxy(server, behind), prefix="far")

    def answer(question: Any) -> dict[str, Any]:
        return {"value": "red" if "color" in question.message else 42}

    async with Client(parent, revision=front, elicitation=answer) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        add, ask = (next(name for name in names if name.endswith(end)) for end in ("add", "_ask"))
        assert add != "add"
        assert (await client.call_tool(add, {"a": 1, "b": 2})).data == 3
        assert (await client.call_tool(ask)).data == "accept red 42"
        count = next(name for name in names if name.endswith("count"))
        await client.call_tool(count, on_progress=progress.append)
        assert [one.progress for one in progress] == [1, 2, 3]
        [resource] = (await client.list_resources()).resources
        assert (await client.read_resource(resource.uri))[0].text == "debug = true"
        [template] = (await client.list_resource_templates()).resource_templates
        uri = template.uri_template.replace("{name}", "today")
        assert (await client.read_resource(uri))[0].text == "note today"
        [prompt] = (await client.list_prompts()).prompts
        rendered = await client.get_prompt(prompt.name, {"name": "Ada"})
        assert rendered.messages[0].content.text == "Hello Ada"  # pyright: ignore[reportAttributeAccessIssue]
        assert (await client.complete("prompt", prompt.name, "name", "A")).values == ["Ada", "Alan"]


async def test_change_behind_a_mounted_proxy_reaches_the_parent() -> None:
    server, parent, changed = make_server(), Server("parent"), asyncio.Event()
    parent.mount(make_proxy(server, MODERN), prefix="far")
    async with Client(parent) as client:
        client.on("notifications/tools/list_changed", lambda _: changed.set())
        await client.list_tools()

        @server.tool
        async def late() -> str:
            return "new"

        async with asyncio.timeout(PATIENCE):
            await changed.wait()
        assert any(tool.name.endswith("late") for tool in (await client.list_tools()).tools)


@pytest.mark.parametrize("front", [HANDSHAKE, MODERN])
async def test_middleware_of_a_mounted_proxy_runs(front: str) -> None:
    mounted, parent, seen = make_proxy(make_server(), MODERN), Server("parent"), list[str]()

    @mounted.middleware
    async def watch(call: Call, next: Next) -> Any:
        seen.append(call.name)
        return await next(call)

    parent.mount(mounted, prefix="far")
    async with Client(parent, revision=front) as client:
        add = next(tool.name for tool in (await client.list_tools()).tools if tool.name.endswith("add"))
        assert (await client.call_tool(add, {"a": 1, "b": 2})).data == 3
        [resource] = (await client.list_resources()).resources
        await client.read_resource(resource.uri)
        [prompt] = (await client.list_prompts()).prompts
        await client.get_prompt(prompt.name, {"name": "Ada"})
    assert seen == ["add", "config://app", "greet"]
