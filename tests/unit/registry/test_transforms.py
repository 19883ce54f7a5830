"""Transforms: new tools made of existing ones, by their schemas."""

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from trunkline import CallToolResult, Client, Server, TextContent, transforms
from trunkline.errors import RegistrationError
from trunkline.registry.tools import ToolEntry

both_eras = pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])


@dataclass
class Report:
    city: str
    degrees: float
    secret: str = "s"


def make_server(transform: Any = None, **options: Any) -> Server:
    server = Server("t", observers=[])

    async def report(city: str, days: int = 1, unit: str = "C") -> Report:
        """Report the weather."""
        return Report(city, days, unit)

    server.add_tool(report, **({} if transform is None else {"transform": transform}), **options)
    return server


async def call(server: Server, arguments: Any, *, name: str = "report", revision: str | None = None) -> Any:
    async with Client(server, revision=revision) as client:
        return await client.call_tool(name, arguments, raise_on_error=False)


def schema_of(server: Server, name: str = "report") -> Any:
    entry = server.tools.get(name)
    assert entry is not None
    return entry.definition.input_schema


# --- names and descriptions --------------------------------------------------------------------------


async def test_tool_is_renamed_and_described_again() -> None:
    server = make_server(
        [
            transforms.rename("outlook"),
            transforms.describe("Look out.", title="Outlook", arguments={"city": "Where."}),
        ],
        max_concurrency=1,
    )

    assert [entry.key for entry in server.tools] == ["outlook"]
    entry = server.tools.live["outlook"]
    assert (entry.description, entry.title) == ("Look out.", "Outlook")
    assert schema_of(server, "outlook")["properties"]["city"] == {"type": "string", "description": "Where."}
    assert (await call(server, {"city": "Rome"}, name="outlook")).structured["city"] == "Rome"


def test_description_without_changes_keeps_everything() -> None:
    before, after = make_server(), make_server(transforms.describe())

    assert before.tools.live["report"].definition == after.tools.live["report"].definition


def test_original_stays_as_it_is() -> None:
    server = make_server()
    entry = server.tools.live["report"]
    before = entry.definition

    changed = transforms.preset_argument("unit", "F")(transforms.rename("other")(entry))

    assert server.tools.live["report"].definition == before == replace(entry).definition
    assert changed.definition != before


# --- arguments ---------------------------------------------------------------------------------------


@both_eras
async def test_hidden_argument_has_its_default_and_cannot_be_passed(revision: str) -> None:
    server = make_server(transforms.hide_argument("unit"))

    assert schema_of(server)["properties"].keys() == {"city", "days"}
    result = await call(server, {"city": "Rome"}, revision=revision)
    assert result.structured["secret"] == "C"
    refused = await call(server, {"city": "Rome", "unit": "F"}, revision=revision)
    assert refused.is_error
    assert "unit" in refused.text


@both_eras
async def test_preset_argument_has_its_value(revision: str) -> None:
    server = make_server(transforms.preset_argument("city", "Rome"))

    assert schema_of(server)["required"] == []
    assert (await call(server, {"days": 3}, revision=revision)).structured == {
        "city": "Rome",
        "degrees": 3.0,
        "secret": "C",
    }
    assert (await call(server, None, revision=revision)).structured["city"] == "Rome"
    assert (await call(server, {"city": "Oslo"}, revision=revision)).is_error


@both_eras
async def test_renamed_argument_has_only_its_new_name(revision: str) -> None:
    server = make_server([transforms.rename_argument("city", "town"), transforms.rename_argument("town", "place")])

    assert list(schema_of(server)["properties"]) == ["place", "days", "unit"]
    assert schema_of(server)["required"] == ["place"]
    assert server.tools.live["report"].renamed_arguments == {"city": "place"}
    assert (await call(server, {"place": "Rome"}, revision=revision)).structured["city"] == "Rome"
    for given in ({"city": "Rome"}, {"town": "Rome"}, {"place": "Rome", "city": "Oslo"}):
        assert (await call(server, given, revision=revision)).is_error


async def test_invalid_arguments_are_explained_by_the_new_schema() -> None:
    server = make_server([transforms.rename_argument("days", "length"), transforms.hide_argument("unit")])

    wrong = await call(server, {"city": "Rome", "length": "long"})
    missing = await call(server, {"length": 1})

    assert "$.length" in wrong.text
    assert "city" in missing.text


async def test_names_may_be_swapped() -> None:
    steps = [("city", "x"), ("unit", "city"), ("x", "unit")]
    server = make_server([transforms.rename_argument(*step) for step in steps])

    result = await call(server, {"unit": "Rome", "city": "F"})

    assert (result.structured["city"], result.structured["secret"]) == ("Rome", "F")


async def test_tools_that_take_any_argument_refuse_preset_ones() -> None:
    server = Server("t", observers=[])

    async def collect(name: str, **more: int) -> dict[str, Any]:
        return {"name": name, **more}

    server.add_tool(collect, transform=transforms.preset_argument("name", "fixed"))

    assert (await call(server, {"x": 1}, name="collect")).structured == {"name": "fixed", "x": 1}
    assert (await call(server, {"name": "other"}, name="collect")).is_error


async def test_tools_with_a_schema_of_their_own_are_transformed_by_it() -> None:
    server = Server("t", observers=[])

    async def remote(**arguments: Any) -> dict[str, Any]:
        return arguments

    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": True}, "required": ["a"]}
    steps = [transforms.rename_argument("a", "first"), transforms.hide_argument("b")]
    server.add_tool(remote, input_schema=schema, transform=steps)

    assert (await call(server, {"first": 1}, name="remote")).structured == {"a": 1}
    refused = await call(server, {"first": "x"}, name="remote")
    assert "$.first" in refused.text
    assert (await call(server, {}, name="remote")).is_error


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (transforms.hide_argument("city"), r"argument 'city' has no default; use preset_argument\('city', …\)"),
        (transforms.hide_argument("units"), "tool 'report' has no argument 'units'. Did you mean .unit.\\?"),
        (transforms.preset_argument("unit", 3), "tool 'report' cannot have unit=3: "),
        (transforms.rename_argument("unit", "city"), "tool 'report' has an argument 'city' already"),
        (transforms.describe(arguments={"x": "y"}), "tool 'report' has no argument 'x'"),
        (transforms.select_output("secrets"), "the output of tool 'report' has no 'secrets'. Did you mean .secret.\\?"),
        ("rename", "a transform is a function of a tool, .*; not 'rename'"),
        (3, "a transform is a function of a tool, .*; not 3"),
    ],
)
def test_impossible_transform_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        make_server(transform)


def test_invalid_name_is_refused() -> None:
    with pytest.raises(RegistrationError, match="must be 1 to 128"):
        transforms.rename("a b")


@pytest.mark.parametrize(
    "transform",
    [transforms.hide_argument("b"), transforms.preset_argument("b", 1), transforms.rename_argument("b", "c")],
)
def test_argument_that_rules_of_the_schema_may_name_stays(transform: Any) -> None:
    server = Server("t", observers=[])
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}

    with pytest.raises(
        RegistrationError, match="'b' cannot be changed, as 'dependentRequired' in the schema may refer"
    ):
        server.add_tool(lambda **_: "x", name="x", input_schema=schema, transform=transform)


# --- output ------------------------------------------------------------------------------------------


@both_eras
async def test_selected_output_has_nothing_else(revision: str) -> None:
    server = make_server(transforms.select_output("city", "secret"))
    definition = server.tools.live["report"].definition

    assert definition.output_schema is not None
    assert definition.output_schema["properties"].keys() == {"city", "secret"}
    assert definition.output_schema["required"] == ["city"]
    result = await call(server, {"city": "Rome"}, revision=revision)
    assert result.structured == {"city": "Rome", "secret": "C"}
    assert result.text == '{"city":"Rome","secret":"C"}'
    assert "degrees" in (await call(make_server(), {"city": "Rome"})).text


@pytest.mark.parametrize("returns", [str, int, dict[str, int], None])
def test_output_without_members_cannot_be_selected(returns: Any) -> None:
    server = Server("t", observers=[])

    async def tool() -> Any: ...

    tool.__annotations__["return"] = returns
    with pytest.raises(RegistrationError, match=r"has no structured output with members; use map_result|has no 'a'"):
        server.add_tool(tool, transform=transforms.select_output("a"))


async def test_failed_result_is_not_changed() -> None:
    server = Server("t", observers=[])

    async def fails() -> Report:
        raise RuntimeError("no")

    def reports() -> Any:
        return CallToolResult([TextContent("bad")], is_error=True)

    server.add_tool(fails, transform=transforms.select_output("city"))
    server.add_tool(reports, transform=transforms.map_result(lambda _: CallToolResult([TextContent("changed")])))

    assert (await call(server, None, name="fails")).is_error
    assert (await call(server, None, name="reports")).text == "bad"


async def test_missing_structured_content_is_an_error() -> None:
    server = make_server()
    entry = server.tools.live["report"]
    unstructured: ToolEntry = replace(entry, name="bare", run=lambda *_: CallToolResult([TextContent("all")]))
    server.tools.add(transforms.select_output("city")(unstructured))

    result = await call(server, {"city": "Rome"}, name="bare")

    assert result.is_error
    assert "all" not in result.text


async def test_recursive_output_is_selected() -> None:
    server = Server("t", observers=[])

    async def tree() -> Node:
        return Node("a", [Node("b", [])])

    server.add_tool(tree, transform=transforms.select_output("name"))

    assert (await call(server, None, name="tree")).structured == {"name": "a"}


@dataclass
class Node:
    name: str
    children: "list[Node]"


@both_eras
async def test_results_are_mapped(revision: str) -> None:
    def shorten(result: CallToolResult) -> CallToolResult:
        return CallToolResult([TextContent("short")], {"size": len(result.structured_content["city"])})

    schema = {"type": "object", "properties": {"size": {"type": "integer", "maximum": 5}}}
    server = make_server(transforms.map_result(shorten, output_schema=schema))

    assert server.tools.live["report"].definition.output_schema == schema
    assert (await call(server, {"city": "Rome"}, revision=revision)).structured == {"size": 4}
    assert (await call(server, {"city": "Rome and Paris"}, revision=revision)).is_error


async def test_mapped_result_without_a_schema_has_none() -> None:
    server = Server("t", observers=[])

    async def say() -> str:
        return "x" * 100_000

    def shorten(result: CallToolResult) -> CallToolResult:
        (block,) = result.content
        assert isinstance(block, TextContent)
        return CallToolResult([TextContent(block.text[:3])])

    server.add_tool(say, transform=transforms.map_result(shorten))

    assert server.tools.live["say"].definition.output_schema is None
    assert (await call(server, None, name="say")).text == "xxx"


# --- on a mount --------------------------------------------------------------------------------------


@both_eras
async def test_mounted_tools_are_transformed(revision: str) -> None:
    main, other = Server("main", observers=[]), make_server()
    other.add_tool(lambda: "x", name="plain")
    other.add_completion(["Rome"], argument="city", tool="report")
    other.add_completion(["C"], argument="unit", tool="report")
    main.mount(
        other,
        prefix="sky",
        transform={
            "report": [
                transforms.rename("outlook"),
                transforms.rename_argument("city", "town"),
                transforms.preset_argument("unit", "F"),
            ]
        },
    )

    assert [entry.key for entry in main.tools] == ["sky__outlook", "sky__plain"]
    assert [entry.key for entry in main.completions] == ["tool sky__outlook town"]
    result = await call(main, {"town": "Rome"}, name="sky__outlook", revision=revision)
    assert result.structured == {"city": "Rome", "degrees": 1.0, "secret": "F"}
    assert (await call(main, None, name="sky__plain", revision=revision)).text == "x"
    assert "report" in other.tools.live


async def test_middleware_of_a_mounted_server_sees_the_original_arguments() -> None:
    main, other = Server("main", observers=[]), make_server()
    seen: list[Any] = []

    @other.middleware
    async def record(call: Any, next: Any) -> Any:
        seen.append((call.name, call.arguments))
        return await next(call)

    main.mount(other, transform=[transforms.rename("outlook"), transforms.rename_argument("city", "town")])

    assert (await call(main, {"town": "Rome"}, name="outlook")).structured["city"] == "Rome"
    assert seen == [("report", {"city": "Rome"})]
