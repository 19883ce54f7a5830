"""Principals of one gateway: none of them ever sees data of another, however their requests interleave.

Each connection to the backend is a server of its own, as each process of a command is. The texts of a principal begin
with its name, so a text that reaches another principal is recognized wherever it appears.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.limits import PATIENCE
from tests.unit.gateway.gateways import make_gateway

from trunkline import Client, Context, Server
from trunkline.auth import Principal, ResourceServer, StaticTokens
from trunkline.client.targets import make_connector
from trunkline.testing import serve_http
from trunkline.transports.channel import Accept, Channel

PRINCIPALS = 50
ERAS = ("2025-11-25", "2026-07-28")
ACTIONS = ("note", "read", "touch", "ask", "prompt", "complete")
PLANS = st.lists(
    st.tuples(
        st.integers(0, PRINCIPALS - 1),  # the principal
        st.sampled_from(ACTIONS),
        st.integers(0, PRINCIPALS - 1),  # whose resource a touch changes
        st.integers(0, 3),  # turns of the loop before the request
        st.integers(0, 3),  # turns of the loop while the backend works
    ),
    min_size=2,
    max_size=30,
)


class ServerPerConnection:
    """A connector that starts a new server for each connection. Resources are common to all servers."""

    name = "notes"

    def __init__(self) -> None:
        self._servers: list[Server] = []

    async def connect(self, accept: Accept) -> Channel:
        """Start a server, and connect to it."""
        server = self._make_server()
        self._servers.append(server)
        return await make_connector(server, server.settings).connect(accept)

    @property
    def count(self) -> int:
        """The number of servers so far."""
        return len(self._servers)

    def _make_server(self) -> Server:
        server, notes = Server("notes"), list[str]()

        @server.tool
        async def note(text: str, turns: int, ctx: Context) -> list[str]:
            """Returns all notes of this server, with the new one."""
            ctx.log("info", f"{text} begins")
            await ctx.progress(1, 2, f"{text} is under way")
            await give_way(turns)
            notes.append(text)
            ctx.log("info", f"{text} ends")
            return notes

        @server.tool
        async def ask(text: str, turns: int, ctx: Context) -> str:
            await give_way(turns)
            answer = await ctx.elicit(f"{text}?", str)
            return f"{answer.data}"

        @server.tool
        async def touch(uri: str) -> None:
            for one in self._servers:
                one.notify_updated(uri)

        @server.resource("note://all")
        def read_all() -> str:
            return "\n".join(notes)

        @server.resource("note://of/{owner}")
        def read_one(owner: str) -> str:
            return owner

        @server.prompt
        def summarize(text: str) -> str:
            return "\n".join([*notes, text])

        @server.completion(prompt="summarize", argument="text")
        def known(value: str) -> list[str]:
            return [value, *notes[-5:]]

        del note, ask, touch, read_all, read_one, summarize, known
        return server


class User:
    """A principal with a client, and everything that it was told."""

    def __init__(self, number: int, url: str) -> None:
        self.name = f"user{number:02}"
        self.seen: list[str] = []
        self.updates: list[str] = []
        self.noted: set[str] = set()
        self._serial = 0
        token, revision = f"token-{self.name}", ERAS[number % len(ERAS)]
        self._client = Client(url, auth=token, revision=revision, elicitation=self._answer)
        self._client.on("notifications/message", lambda notice: self.seen.append(str(notice.params.data)))
        self._client.on("notifications/resources/updated", lambda notice: self.updates.append(notice.params.uri))

    async def open(self, stack: AsyncExitStack) -> None:
        """Connect, and subscribe to the resource of this principal."""
        await stack.enter_async_context(self._client)
        await self._client.set_log_level("debug")
        await self._client.subscribe(self.uri)

    @property
    def uri(self) -> str:
        """The resource that this principal has subscribed to."""
        return uri_of(self.name)

    def _answer(self, question: Any) -> Any:
        self.seen.append(question.message)
        return {"value": f"{self.name} answers"}

    def _report(self, report: Any) -> None:
        self.seen.append(report.message)

    def _new_text(self) -> str:
        self._serial += 1
        return f"{self.name} text {self._serial}"

    async def act(self, action: str, other: str, before: int, turns: int) -> None:
        """Send a request, and check its result."""
        await give_way(before)
        client, text = self._client, self._new_text()
        match action:
            case "note":
                noted, arguments = {*self.noted}, {"text": text, "turns": turns}
                own = await client.call_tool("notes__note", arguments, on_progress=self._report)
                self.noted.add(text)
                assert {*own.data} >= noted | {text}, "a note is missing"
                self.seen += own.data
            case "read":
                noted, [content] = {*self.noted}, await client.read_resource("note://notes/all")
                assert {*content.text.splitlines()} >= noted
                self.seen += content.text.splitlines()
            case "touch":
                await client.call_tool("notes__touch", {"uri": f"note://of/{other}"})
            case "ask":
                answer = await client.call_tool("notes__ask", {"text": text, "turns": turns})
                assert answer.data == f"{self.name} answers"
            case "prompt":
                found = await client.get_prompt("notes__summarize", {"text": text})
                self.seen += "".join(one.content.text for one in found.messages).splitlines()
            case _:
                self.seen += (await client.complete("prompt", "notes__summarize", "text", text)).values

    async def settle(self) -> None:
        """Wait until everything that was sent before has arrived."""
        await self._client.ping()

    def check(self) -> None:
        """Fail if something of another principal was seen."""
        foreign = [text for text in self.seen if not text.startswith(self.name)]
        assert not foreign[:3], f"{self.name} has seen them"
        assert {*self.updates} <= {self.uri}, f"{self.name} has seen updates of {self.updates}"
        self.seen.clear()
        self.updates.clear()


def uri_of(name: str) -> str:
    """Return the URI of the resource of a principal, in the gateway."""
    return f"note://notes/of/{name}"


async def give_way(turns: int) -> None:
    """Let others run for some turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


@contextmanager
def users_of(folder: Path) -> Iterator[tuple[list[User], asyncio.Runner, ServerPerConnection]]:
    """Connect all principals to one gateway."""
    names = [f"user{number:02}" for number in range(PRINCIPALS)]
    auth = ResourceServer(StaticTokens({f"token-{name}": Principal(name) for name in names}))
    target = ServerPerConnection()
    gateway = make_gateway(folder, {"notes": target}, auth=auth)
    with serve_http(gateway.server) as url, asyncio.Runner() as runner:
        users, stack = [User(number, url) for number in range(PRINCIPALS)], AsyncExitStack()
        try:
            runner.run(open_all(users, stack))
            yield users, runner, target
        finally:
            runner.run(stack.aclose())


async def open_all(users: list[User], stack: AsyncExitStack) -> None:
    """Connect all principals."""
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(user.open(stack) for user in users))


async def run_plan(users: list[User], plan: list[tuple[int, str, int, int, int]]) -> None:
    """Run all requests of a plan at the same time."""
    async with asyncio.timeout(PATIENCE):
        work = [users[who].act(action, users[other].name, *turns) for who, action, other, *turns in plan]
        await asyncio.gather(*work)
        await asyncio.gather(*(user.settle() for user in users))


def test_no_principal_of_a_gateway_sees_data_of_another(tmp_path: Path) -> None:
    with users_of(tmp_path) as (users, runner, target):

        @settings(max_examples=settings().max_examples // 4)  # each has many requests
        @given(PLANS)
        def check(plan: list[tuple[int, str, int, int, int]]) -> None:
            runner.run(run_plan(users, plan))
            for user in users:
                user.check()

        check()
        assert target.count > PRINCIPALS / 2
