"""Idioms of the manual with the types that pyright has to give them; `test_typing.py` checks this file, nothing runs it."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, assert_type

from trunkline import BlockingClient, Call, Client, Context, Depends, Middleware, Next, Question, Server, ToolResult
from trunkline.client.tasks.handle import Task
from trunkline.protocol.types import ElicitResult
from trunkline.server.input.forms import ElicitationAnswer


@dataclass
class Person:
    name: str


class Colour(Enum):
    RED = "red"


class Database:
    def count(self) -> int:
        return 0


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[Database]:
    yield Database()


async def plain_lifespan(server: Server) -> AsyncGenerator[Database]:
    yield Database()


server = Server("idioms", lifespan=lifespan)
Server("idioms", lifespan=plain_lifespan)


# --- elicitation


async def elicits(ctx: Context) -> str:
    answer = await ctx.elicit("Who?", Person)
    if answer.accepted:
        assert_type(answer.data, Person)
    if not answer.accepted:
        return assert_type(answer.action, Literal["accept", "decline", "cancel"])
    return answer.data.name


async def elicits_scalars(ctx: Context) -> None:
    assert_type((await ctx.elicit("?", str)).data, str)
    assert_type((await ctx.elicit("?", int)).data, int)
    assert_type((await ctx.elicit("?", bool)).data, bool)
    assert_type((await ctx.elicit("?", float)).data, float)
    assert_type((await ctx.elicit("?", Colour)).data, Colour)
    assert_type((await ctx.elicit("?", list[Colour])).data, list[Colour])
    assert_type((await ctx.elicit("?", Literal["a", "b"])).data, Literal["a", "b"])
    assert_type((await ctx.elicit("?", Annotated[str, "a name"])).data, str)
    assert_type((await ctx.elicit("?", int | None)).data, int | None)
    assert_type((await ctx.elicit("?", None)).data, None)
    assert_type((await ctx.elicit("?", {"type": "object"})).data, dict[str, Any])
    assert_type(await ctx.elicit_url("?", "https://example.com"), ElicitationAnswer[None])


def elicits_on_a_thread(ctx: Context) -> None:
    assert_type(ctx.wait(ctx.elicit("?", Person)).data, Person)


# --- sampling and prompts


async def samples(ctx: Context, client: Client) -> None:
    reply = await ctx.sample("Hello")
    assert_type(reply.text, str)
    assert_type(reply.message.text, str)
    assert_type((await client.get_prompt("plan")).messages[0].text, str)


# --- lifespan


@server.tool
async def rows(ctx: Context[Database]) -> int:
    assert_type(ctx.lifespan, Database)
    return ctx.lifespan.count()


@server.tool
async def rows_untyped(ctx: Context) -> Any:
    return assert_type(ctx.lifespan, Any)


def takes_any_context(ctx: Context) -> None: ...


def passes_context_on(ctx: Context[Database]) -> None:
    takes_any_context(ctx)


@server.on_roots_changed
async def roots_changed(ctx: Context[Database]) -> None:
    assert_type(ctx.lifespan, Database)


# --- middleware


@server.middleware
async def watch(call: Call, next: Next) -> Any:
    return await next(call)


def limited(most: int) -> Middleware:
    async def limit(call: Call, following: Next) -> Any:
        return await following(call)

    return limit


server.middleware(limited(3))


# --- decorators


@server.tool
def add(a: int, b: int = 1) -> int:
    return a + b


@server.tool(name="other")
async def subtract(a: int, b: int) -> int:
    return a - b


@server.resource("notes://{name}", allow=lambda ctx: ctx.principal is not None)
def note(name: str) -> str:
    return name


@server.prompt
def greet(name: str) -> str:
    return name


@server.prompt(title="Leave")
def leave(name: str) -> str:
    return name


@server.completion(prompt="greet", argument="name")
def names(text: str) -> list[str]:
    return [text]


@server.health("database")
def healthy() -> bool:
    return True


@server.on_first_subscriber
def begin(uri: str) -> None: ...


async def keeps_the_types_of_decorated_functions() -> None:
    assert_type(add(a=1), int)
    assert_type(await subtract(2, b=1), int)
    assert_type(note(name="a"), str)
    assert_type(greet(name="a"), str)
    assert_type(leave(name="a"), str)
    assert_type(names(text="a"), list[str])
    assert_type(healthy(), bool)
    assert_type(begin(uri="a"), None)


# --- dependencies


def database() -> Database:
    return Database()


@server.tool
def counted(db: Annotated[Database, Depends(database)]) -> int:
    assert_type(db, Database)
    return db.count()


# --- clients


async def fill_in(question: Question) -> dict[str, str]:
    return {field.name: "" for field in question.fields}


async def calls(kind: Any) -> None:
    async with Client(server, sampling=lambda params: params.messages[0].text, elicitation=fill_in) as client:
        assert_type(client, Client)
        assert_type((await client.call_tool("find", returns=Person)).data, Person)
        assert_type((await client.call_tool("find", returns=list[Person])).data, list[Person])
        assert_type((await client.call_tool("find", returns=Person | None)).data, Person | None)
        assert_type((await client.call_tool("find", returns=Literal["a", "b"])).data, Literal["a", "b"])
        assert_type((await client.call_tool("find", returns=kind)).data, Any)
        assert_type(await client.call_tool("find"), ToolResult[Any])
        assert_type(await client.start_tool("find", returns=Person), Task[Person])
        assert_type((await client.task("1", returns=Person).result()).data, Person)
        assert_type(await client.start_tool("find"), Task[Any])


def calls_and_waits() -> None:
    with BlockingClient(server, sampling=lambda params: params.messages[0].text, elicitation=fill_in) as client:
        assert_type(client, BlockingClient)
        assert_type(client.call_tool("find", returns=Person).data, Person)
        assert_type(client.call_tool("find"), ToolResult[Any])
        assert_type(client.start_tool("find", returns=Person).result().data, Person)
        assert_type(client.task("1", returns=Person).result().data, Person)
        assert_type([tool.name for tool in client.tools()], list[str])


def uses_bare_names_of_generic_classes(result: ToolResult, task: Task) -> None:
    assert_type(result.data, Any)
    assert_type(task, Task[Any])


def opens_urls(open_url: Callable[[Any], bool], elicit: Callable[..., Awaitable[ElicitResult]]) -> None:
    Client(server, open_url=open_url, elicitation=elicit)
