"""Tenants are isolated: fifty principals use one server concurrently over real HTTP, and try to steal from each
other. All data that one of them receives carries that principal's mark alone.

The random choices follow the seed of the run.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import pytest
from tests.attacks.fake_internet import KEY, OTHER_KEY, Issuer, issuer, page
from tests.attacks.raw import INITIALIZED, Caller, ask, call, initialize, request
from tests.limits import PATIENCE
from tests.modern import EVERYTHING, PREFIX, headers_of, meta

from trunkline import Context, Server, Settings
from trunkline.auth import Jwt, Principal, ResourceServer, StaticTokens
from trunkline.errors import ResourceNotFound
from trunkline.transports.addresses import parse_address

pytestmark = pytest.mark.no_cover  # thousands of requests to code that other tests measure

MANY = 50
TURNS = 12  # of each
SCOPES = ("read", "write", "admin", "mail")
US = "https://mcp.example/mcp"
MARK = re.compile(r"mark-\d\d")
ENTRIES = range(6)
EXPECTED = (  # so that each action happened often enough
    *("answer", "notifications/progress", "notifications/message", "elicitation/create", "played again"),
    *("told by a request", "told in a session", "cursor of another", "state of another", "session of another"),
)


@dataclass
class Said:
    note: str


class Tenant:
    """A principal with a token, and handles that other tenants may steal."""

    def __init__(self, number: int, principal: Principal, token: Callable[[], str]) -> None:
        self.mark = f"mark-{number:02d}"
        self.principal = principal
        self.token = token
        self.session: str | None = None
        self.cursors: dict[str, str] = {}
        self.state: str | None = None
        self.seen: Counter[str] = Counter()  # responses, and attempts

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token()}"}

    def owns(self, answer: Any) -> Any:
        """Return a response, if it contains no other tenant's mark."""
        self.seen[answer.get("method", "answer")] += 1
        assert set(MARK.findall(str(answer))) <= {self.mark}, (self.mark, answer)
        return answer


def make_tenants(random: Random, home: Issuer, abroad: Issuer) -> tuple[list[Tenant], StaticTokens]:
    """Half of them with signed tokens of two issuers, half with opaque tokens. Many share a client id, and the names
    are the same at each issuer.
    """
    made: list[Tenant] = []
    known: dict[str, Principal] = {}
    for number in range(MANY):
        scopes = tuple(random.sample(SCOPES, random.randint(0, len(SCOPES))))
        who, kind = f"user-{number // 6}", number % 6
        client = f"app-{kind // 3}"  # for each name: three sources, and two clients of each
        if kind % 3 == 2:
            token = f"token-{random.getrandbits(64):x}"
            known[token] = principal = Principal(who, client=client, scopes=scopes)
            made.append(Tenant(number, principal, lambda token=token: token))
        else:
            source, key = ((home, KEY), (abroad, OTHER_KEY))[kind % 3]
            principal = Principal(who, issuer=source.name, client=client, scopes=scopes)
            made.append(Tenant(number, principal, signing(source, key, principal, random)))
    assert len({tenant.principal for tenant in made}) == MANY
    return made, StaticTokens(known)


def signing(source: Issuer, key: Any, principal: Principal, random: Random) -> Callable[[], str]:
    """A token that changes now and then."""
    claims = {"sub": principal.subject, "client_id": principal.client, "scope": " ".join(principal.scopes)}
    tokens = [source.token(US, key=key, jti=str(random.random()), **claims) for _ in range(3)]
    return lambda: random.choice(tokens)


def offering(tenants: list[Tenant], auth: ResourceServer) -> Server:
    """A server that puts the mark of the recipient into all of its messages."""
    marks = {tenant.principal: tenant.mark for tenant in tenants}
    server = Server("s", settings=Settings(page_size=3, drain_timeout=0.2, quick_timeout=PATIENCE), auth=auth)

    @server.tool
    async def speak(ctx: Context) -> str:
        mark = marks[ctx.principal]
        await ctx.progress(1, message=mark)
        ctx.info(f"{mark} is being served")
        await asyncio.sleep(0)
        await ctx.progress(2, message=mark)
        return f"{mark} by {marks[ctx.principal]}"

    @server.tool
    async def question(ctx: Context) -> str:
        mark = marks[ctx.principal]
        answer = await ctx.elicit(f"{mark}?", Said, key="said")
        return f"{mark} said {answer.data and answer.data.note}"

    async def own(ctx: Context) -> list[str]:
        return [f"note:{marks[ctx.principal]}"]

    @server.resource("note:{mark}", list=own)
    async def note(mark: str, ctx: Context) -> str:
        if marks[ctx.principal] != mark:
            raise ResourceNotFound("note:")
        return f"the note of {mark}"

    @server.prompt
    async def greet(ctx: Context) -> str:
        return f"hello {marks[ctx.principal]}"

    for number in ENTRIES:
        rule: Any = {"scopes": needed(number)}
        if number % 3 == 0:
            rule["allow"] = lambda ctx, number=number: ctx.principal.subject.endswith(str(number))
        server.add_tool(lambda: "x", name=f"tool{number}", thread=False, **rule)
        server.add_prompt("x", name=f"prompt{number}", **rule)
        server.add_resource(f"x:{number}", "x", **rule)
    return server


def result_of(answer: Any) -> Any:
    """The result of a request that has to succeed."""
    assert "result" in answer, answer
    return answer["result"]


def needed(number: int) -> tuple[str, ...]:
    """The scopes of an entry."""
    return SCOPES[number % 4 : number % 4 + 1 + number % 2]


def may(principal: Principal, number: int) -> bool:
    """Return whether a principal may use an entry."""
    allowed = number % 3 != 0 or principal.subject.endswith(str(number))
    return allowed and principal.scopes >= set(needed(number))


class TenantActions:
    """One tenant among all, at a server."""

    def __init__(self, port: int, one: Tenant, all_: list[Tenant], random: Random, server: Server) -> None:
        self.port = port
        self.one = one
        self.random = random
        self.server = server
        self.others = [tenant for tenant in all_ if tenant is not one]
        self.ids = count(1)  # the same for all tenants

    # --- requests ----------------------------------------------------------------------------------

    async def modern(self, method: str, **params: Any) -> Any:
        """The last message of the response to a modern request."""
        envelope = meta(EVERYTHING, progressToken=self.one.mark, **{f"{PREFIX}logLevel": "debug"})
        asked = {**params, "_meta": envelope}
        return await self._asked(call(method, asked, ident=next(self.ids)), headers_of(method, asked))

    async def in_session(self, method: str, **params: Any) -> Any:
        """The same in a session."""
        await self.opened()
        params["_meta"] = {"progressToken": self.one.mark}
        headers = {"mcp_session_id": str(self.one.session)}
        return await self._asked(call(method, params, ident=next(self.ids)), headers)

    async def not_theirs(self, uri: str) -> Any:
        """The response to a request for another tenant's data, which may echo the request."""
        asked = {"uri": uri, "_meta": meta()}
        headers = {**headers_of("resources/read", asked), **self.one.bearer}
        return (await ask(self.port, "POST", "/mcp", call("resources/read", asked), **headers)).json

    async def _asked(self, body: Any, headers: dict[str, str]) -> Any:
        async with Caller(self.port) as caller:
            caller.say(request("POST", "/mcp", body, **headers, **self.one.bearer))
            answer = await caller.head()
            if answer.headers["content-type"] == "application/json":
                answer.body = await caller.exactly(int(answer.headers["content-length"]))
                return self.one.owns(answer.json)
            last = None
            async for message in caller.messages():
                last = self.one.owns(message)
                if message.get("method") == "elicitation/create":
                    await self.answer(message["id"])
            return last

    async def answer(self, ident: Any) -> None:
        """Answer a request of the server; another tenant answers it, too."""
        for tenant in (self.random.choice(self.others), self.one):
            if tenant.session is not None:
                result = {"action": "accept", "content": {"note": tenant.mark}}
                body = {"jsonrpc": "2.0", "id": ident, "result": result}
                await ask(self.port, "POST", "/mcp", body, mcp_session_id=tenant.session, **tenant.bearer)

    async def opened(self) -> None:
        if self.one.session is None:
            opened = await ask(self.port, "POST", "/mcp", initialize(elicitation={}), **self.one.bearer)
            self.one.session = opened.session
            await ask(self.port, "POST", "/mcp", INITIALIZED, mcp_session_id=opened.session, **self.one.bearer)

    async def either(self, method: str, **params: Any) -> Any:
        return await (self.modern if self.random.random() < 0.5 else self.in_session)(method, **params)

    # --- actions -----------------------------------------------------------------------------------

    async def speak(self) -> None:
        answer = await self.either("tools/call", name="speak", arguments={})
        assert answer["result"]["content"][0]["text"] == f"{self.one.mark} by {self.one.mark}"

    async def read(self) -> None:
        uri = f"note:{self.one.mark}"
        assert (await self.either("resources/read", uri=uri))["result"]["contents"][0]["text"].endswith(self.one.mark)
        assert "error" in await self.not_theirs(f"note:{self.random.choice(self.others).mark}")

    async def greet(self) -> None:
        assert self.one.mark in str((await self.either("prompts/get", name="greet"))["result"]["messages"])

    async def look(self) -> None:
        """Read lists page by page, and publish the cursors."""
        for method in ("tools/list", "resources/list", "prompts/list"):
            cursor: dict[str, str] = {}
            while True:
                result = result_of(await self.either(method, **cursor))
                assert result.get("cacheScope", "private") == "private"
                if "nextCursor" not in result:
                    break
                cursor = {"cursor": result["nextCursor"]}
                self.one.cursors[method] = result["nextCursor"]

    async def swap_cursor(self) -> None:
        other = self.random.choice(self.others)
        for method, cursor in list(other.cursors.items()):
            assert (await self.either(method, cursor=cursor))["error"]["code"] == -32602
            self.one.seen["cursor of another"] += 1

    async def ask_back(self) -> None:
        """An input request and its answer: in a session on the stream, otherwise by two requests."""
        await self.opened()
        answer = await self.in_session("tools/call", name="question", arguments={})
        assert answer["result"]["content"][0]["text"] == f"{self.one.mark} said {self.one.mark}"
        asked: dict[str, Any] = {"name": "question", "arguments": {}}
        self.one.state = (await self.modern("tools/call", **asked))["result"]["requestState"]
        said = {"said": {"action": "accept", "content": {"note": self.one.mark}}}
        other = self.random.choice(self.others)
        if other.state is not None:
            stolen = await self.modern("tools/call", **asked, requestState=other.state, inputResponses=said)
            assert stolen["error"]["data"]["kind"] == "invalid_request_state"
            self.one.seen["state of another"] += 1
        answer = await self.modern("tools/call", **asked, requestState=self.one.state, inputResponses=said)
        assert answer["result"]["content"][0]["text"] == f"{self.one.mark} said {self.one.mark}"

    async def steal(self) -> None:
        """Use the session of another tenant."""
        session = self.random.choice(self.others).session
        if session is None:
            return
        event = {"last_event_id": f"{self.random.randint(0, 3)}-0"} if self.random.random() < 0.5 else {}
        for method, body in (("POST", call("tools/list")), ("GET", None), ("DELETE", None)):
            more = event if method == "GET" else {}
            async with Caller(self.port) as caller:
                caller.say(request(method, "/mcp", body, mcp_session_id=session, **more, **self.one.bearer))
                assert (await caller.head()).status == 404, method
        self.one.seen["session of another"] += 1

    async def resume(self) -> None:
        """Resume a stream of the tenant's own session."""
        await self.in_session("tools/call", name="speak", arguments={})
        for number in range(1, 4):
            async with Caller(self.port) as caller:
                mine = {"mcp_session_id": self.one.session, **self.one.bearer}
                caller.say(request("GET", "/mcp", None, **mine, last_event_id=f"{number}-0"))
                if (await caller.head()).status == 200:
                    async for message in caller.messages():
                        self.one.owns(message)
                        self.one.seen["played again"] += 1
                        if "result" in message:
                            break

    async def listen(self) -> None:
        """Receive updates of the tenant's note, on a session's stream and on a listen request."""
        await self.opened()
        uri, session = f"note:{self.one.mark}", {"mcp_session_id": self.one.session}
        assert "result" in await self.in_session("resources/subscribe", uri=uri)
        wanted = {"notifications": {"resourceSubscriptions": [uri]}, "_meta": meta()}
        headers = {**headers_of("subscriptions/listen", wanted), **self.one.bearer}
        asked = request("POST", "/mcp", call("subscriptions/listen", wanted), **headers)
        streams = (request("GET", "/mcp", None, **session, **self.one.bearer), asked)
        for stream in streams:
            async with Caller(self.port) as caller:
                caller.say(stream)
                if (await caller.head()).status != 200:
                    continue  # its stream has a reader already
                messages = caller.messages()
                if stream is asked:
                    self.one.owns(await anext(messages))
                for tenant in (*self.random.sample(self.others, 3), self.one):
                    self.server.notify_updated(f"note:{tenant.mark}")
                heard = self.one.owns(await anext(messages))
                assert heard["params"]["uri"] == uri
                self.one.seen["told by a request" if stream is asked else "told in a session"] += 1

    async def listed_is_callable(self) -> None:
        shown: dict[str, set[str]] = {"tools": set(), "prompts": set(), "resources": set()}
        ask_ = self.random.choice((self.modern, self.in_session))
        keys = {"tools": ("tools/call", "name", "tool{}"), "prompts": ("prompts/get", "name", "prompt{}")}
        keys["resources"] = ("resources/read", "uri", "x:{}")
        for kind, (method, key, spelt) in keys.items():
            cursor: dict[str, str] = {}
            while True:
                result = result_of(await ask_(f"{kind}/list", **cursor))
                shown[kind] |= {entry[key] for entry in result[kind]}
                if "nextCursor" not in result:
                    break
                cursor = {"cursor": result["nextCursor"]}
            for number in ENTRIES:
                answer = await ask_(method, **{key: (name := spelt.format(number))})
                served = "result" in answer and not answer["result"].get("isError")
                told = (self.one.principal, self.one.principal.scopes, name)
                assert served is (name in shown[kind]) is may(self.one.principal, number), told

    async def live(self) -> None:
        """That many random actions."""
        actions: list[Callable[[], Awaitable[None]]] = [
            *(self.speak, self.read, self.greet, self.look, self.swap_cursor, self.ask_back, self.steal, self.steal),
            *(self.resume, self.listen),
        ]
        await self.look()  # so that other tenants have cursors to steal
        for _ in range(TURNS):
            await self.random.choice(actions)()
        await self.listed_is_callable()


@asynccontextmanager
async def served(random: Random) -> AsyncIterator[tuple[int, list[Tenant], Server]]:
    async with issuer() as home, issuer() as abroad:
        abroad.site.pages["/jwks"] = page({"keys": [OTHER_KEY.public]})
        tenants, static = make_tenants(random, home, abroad)
        auth = ResourceServer(Jwt(home.name), Jwt(abroad.name), static, public_url=US)
        server = offering(tenants, auth)
        listener = await server.listen("http://127.0.0.1:0/mcp")
        try:
            yield parse_address(listener.address).port, tenants, server
        finally:
            await server.aclose()


async def test_fifty_concurrent_principals_stay_separate(seed: int) -> None:
    random = Random(seed)
    async with served(random) as (port, tenants, server):
        streets = [TenantActions(port, tenant, tenants, Random(random.random()), server) for tenant in tenants]
        async with asyncio.TaskGroup() as town:
            for street in streets:
                town.create_task(street.live())
    seen = sum((tenant.seen for tenant in tenants), Counter[str]())
    assert all(seen[what] >= MANY // 5 for what in EXPECTED), seen
