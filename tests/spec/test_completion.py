"""Completion: proposals for arguments of prompts, resource templates and tools."""

from typing import Any

import pytest

from trunkline import Server
from trunkline.errors import RegistrationError
from trunkline.protocol.types import Completion
from trunkline.testing import RawPeer, RecordingObserver

PROMPT = {"type": "ref/prompt", "name": "query"}
TEMPLATE = {"type": "ref/resource", "uri": "table://{schema}/{name}"}


def make_server() -> Server:
    server = Server("t", observers=[])

    @server.prompt
    async def query(sql: str, table: str = "") -> str:
        return sql

    @server.resource("table://{schema}/{name}")
    async def table(schema: str, name: str) -> str:
        return name

    @server.tool
    async def run(sql: str) -> str:
        return sql

    server.add_resource("table://static", "text")
    return server


async def complete(peer: RawPeer, ref: Any, argument: str, value: str = "", **more: Any) -> Any:
    return await peer.request(
        "completion/complete", {"ref": ref, "argument": {"name": argument, "value": value}, **more}
    )


@pytest.mark.row("CMP-02", "C01")
async def test_completer_gets_the_value_and_context_arguments() -> None:
    server, seen = make_server(), []

    @server.completion(resource="table://{schema}/{name}", argument="name")
    async def names(value: str, filled: dict[str, str]) -> list[str]:
        seen.append((value, filled))
        return [f"{filled['schema']}.users"]

    async with RawPeer(server) as peer:
        assert (await peer.initialize())["capabilities"]["completions"] == {}
        answer = await complete(peer, TEMPLATE, "name", "us", context={"arguments": {"schema": "public"}})
    assert seen == [("us", {"schema": "public"})]
    assert answer["result"] == {"completion": {"values": ["public.users"], "total": 1, "hasMore": False}}


@pytest.mark.row("C01")
@pytest.mark.parametrize("thread", [True, False])
async def test_completer_may_be_sync_and_take_only_the_value(*, thread: bool) -> None:
    server = make_server()

    @server.completion(prompt="query", argument="sql", thread=thread)
    def sql(value: str) -> list[str]:
        return [value + "OM"]

    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await complete(peer, PROMPT, "sql", "FR"))["result"]["completion"]["values"] == ["FROM"]


@pytest.mark.row("C02")
async def test_each_reference_kind_has_its_completer() -> None:
    server = make_server()
    server.completion(prompt="query", argument="sql")(lambda value: ["prompt"])
    server.completion(resource="table://{schema}/{name}", argument="schema")(lambda value: ["resource"])
    server.completion(tool="run", argument="sql")(lambda value: ["tool"])
    async with RawPeer(server) as peer:
        await peer.initialize()
        for ref, argument, kind in (
            (PROMPT, "sql", "prompt"),
            (TEMPLATE, "schema", "resource"),
            ({"type": "ref/tool", "name": "run"}, "sql", "tool"),
        ):
            assert (await complete(peer, ref, argument))["result"]["completion"]["values"] == [kind]


@pytest.mark.row("C03", "X15")
async def test_unprefixed_reference_gets_labels_as_well() -> None:
    server = make_server()

    @server.completion(tool="run", argument="sql")
    async def sql(value: str) -> list[str]:
        return ["SELECT * FROM"] if "SELECT * FROM".startswith(value) else []

    async with RawPeer(server) as peer:
        await peer.initialize()
        answer = await complete(peer, {"type": "tool", "name": "run"}, "sql", "SELECT * FR")
        nothing = await complete(peer, {"type": "prompt", "name": "query"}, "sql")
    assert answer["result"] == {
        "completion": {"values": ["SELECT * FROM"], "total": 1, "hasMore": False},
        "completions": [{"value": "SELECT * FROM", "label": "SELECT * FROM"}],
        "hasMore": False,
        "total": 1,
    }
    assert nothing["result"]["completions"] == []


@pytest.mark.row("C03", "X15")
@pytest.mark.parametrize("ready_made", [True, False])
async def test_labels_of_a_completer_go_where_the_reply_has_a_place(*, ready_made: bool) -> None:
    server, countries = make_server(), [("gb", "United Kingdom"), ("us", "United States")]
    if ready_made:
        server.add_completion(countries, prompt="query", argument="sql")
    else:
        server.completion(prompt="query", argument="sql")(lambda value: countries)
    async with RawPeer(server) as peer:
        await peer.initialize()
        plain = (await complete(peer, PROMPT, "sql", "united"))["result"]
        labelled = (await complete(peer, {"type": "prompt", "name": "query"}, "sql", "united"))["result"]
    assert plain == {"completion": {"values": ["gb", "us"], "total": 2, "hasMore": False}}
    assert labelled["completions"] == [
        {"value": "gb", "label": "United Kingdom"},
        {"value": "us", "label": "United States"},
    ]


def test_ready_made_proposals_are_checked_at_registration() -> None:
    for wrong in (5, ("a",), ("a", None)):
        with pytest.raises(RegistrationError, match="pairs of a value and a label"):
            make_server().add_completion(["good", wrong], prompt="query", argument="sql")  # type: ignore[list-item]


@pytest.mark.row("CMP-04", "C02", "C04")
@pytest.mark.parametrize(
    ("ref", "argument", "kind"),
    [
        ({"type": "ref/prompt", "name": "nobody"}, "sql", "completion_not_found"),
        ({"type": "ref/resource", "uri": "no://{where}"}, "where", "completion_not_found"),
        ({"type": "ref/tool", "name": "nobody"}, "sql", "completion_not_found"),
        ({"type": "ref/dream", "name": "query"}, "sql", "invalid_completion_reference"),
        ({"type": "ref/prompt"}, "sql", "invalid_completion_reference"),
        (PROMPT, "no_such", "invalid_completion_argument"),
        ({"type": "ref/resource", "uri": "table://static"}, "any", "invalid_completion_argument"),
    ],
)
async def test_invalid_completion_is_invalid_params(ref: Any, argument: str, kind: str) -> None:
    server = make_server()
    server.completion(prompt="query", argument="sql")(lambda value: [])
    async with RawPeer(server) as peer:
        await peer.initialize()
        error = (await complete(peer, ref, argument))["error"]
    assert (error["code"], error["data"]["kind"]) == (-32602, kind)


@pytest.mark.row("C04")
async def test_failing_completer_hides_its_reason() -> None:
    observer = RecordingObserver()
    server = Server("t", observers=[observer])
    server.add_prompt("{x}", name="p")

    @server.completion(prompt="p", argument="x")
    async def x(value: str) -> list[str]:
        raise ValueError("a secret")

    async with RawPeer(server) as peer:
        await peer.initialize()
        error = (await complete(peer, {"type": "ref/prompt", "name": "p"}, "x"))["error"]
    assert (error["code"], error["data"]["kind"]) == (-32603, "completion_failed")
    assert "secret" not in str(error)


@pytest.mark.row("CMP-03", "C05")
async def test_response_has_100_values_and_the_total() -> None:
    server = make_server()
    server.completion(prompt="query", argument="sql")(lambda value: [f"v{n}" for n in range(150)])
    async with RawPeer(server) as peer:
        await peer.initialize()
        found = (await complete(peer, PROMPT, "sql"))["result"]["completion"]
    assert (found["values"][0], len(found["values"]), found["total"], found["hasMore"]) == ("v0", 100, 150, True)


@pytest.mark.row("CMP-03")
async def test_completer_may_report_the_total() -> None:
    server = make_server()
    server.completion(prompt="query", argument="sql")(lambda value: Completion(["a"], 1000, True))
    async with RawPeer(server) as peer:
        await peer.initialize()
        found = (await complete(peer, PROMPT, "sql"))["result"]["completion"]
    assert found == {"values": ["a"], "total": 1000, "hasMore": True}


async def test_argument_without_completer_has_no_values() -> None:
    server = make_server()
    server.completion(prompt="query", argument="sql")(lambda value: ["x"])
    async with RawPeer(server) as peer:
        await peer.initialize()
        assert (await complete(peer, PROMPT, "table"))["result"]["completion"]["values"] == []


@pytest.mark.row("CMP-04")
async def test_completion_needs_the_capability() -> None:
    async with RawPeer(make_server()) as peer:
        assert "completions" not in (await peer.initialize())["capabilities"]
        assert (await complete(peer, PROMPT, "sql"))["error"]["code"] == -32601


@pytest.mark.row("CMP-01")
async def test_2024_11_05_has_completion_without_capability() -> None:
    server = make_server()
    server.completion(prompt="query", argument="sql")(lambda value: ["x"])
    async with RawPeer(server) as peer:
        assert "completions" not in (await peer.initialize("2024-11-05"))["capabilities"]
        assert (await complete(peer, PROMPT, "sql"))["result"]["completion"]["values"] == ["x"]


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        ({"type": "resource", "name": "table://{schema}/{name}"}, None),
        ({"type": "resource", "uri": "table://{schema}/{name}"}, None),
        ({"type": "ref/resource", "name": "table://{schema}/{name}"}, -32602),
    ],
)
async def test_only_unprefixed_reference_names_a_template(ref: Any, code: int | None) -> None:
    server = make_server()
    server.add_completion(resource="table://{schema}/{name}", argument="name", values=["users"])
    async with RawPeer(server) as peer:
        await peer.initialize()
        answer = await complete(peer, ref, "name")
        assert answer.get("error", {}).get("code") == code
