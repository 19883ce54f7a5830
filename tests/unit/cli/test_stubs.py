"""`trunkline stubs`: typed modules, which no text of a server can turn into other code."""

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.docs.test_typing import STRICT, diagnosed
from tests.unit.cli.commands import run

from trunkline import Server, ToolResult
from trunkline.cli.description import ServerDescription
from trunkline.cli.stub_module import write_stubs
from trunkline.protocol.types import Implementation, Tool

TEXT = {"type": "string"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": {}}}
ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "tag": {"enum": ["a", None, 1, True, 1.5]},
        "str": TEXT,
        "nodes": {"anyOf": [TEXT, {"type": "array", "items": {"$ref": "#/$defs/Node"}}]},
    },
    "required": ["id"],
}


def tool(name: str, properties: dict[str, Any] | None = None, *required: str, output: Any = None, **more: Any) -> Tool:
    schema = {"type": "object", "properties": properties or {}, "required": [*required]}
    return Tool(name=name, input_schema=schema, output_schema=output, **more)


RICH = ServerDescription(
    server=Implementation(name='my "shop"', version="1"),
    tools=[
        tool(
            "list",
            {
                "from": {**TEXT, "description": "Where from."},
                "a-b": {"type": ["integer", "null"]},
                "self": {"type": "boolean"},
                "list": {"type": "array", "items": TEXT},
            },
            "from",
            output={
                "type": "object",
                "properties": {"result": {"type": "array", "items": ITEM}},
                "$defs": {"Node": NODE},
            },
            description='Lists """all""" of it: \\',
        ),
        tool(
            "read-file",
            {
                "options": {
                    "type": "object",
                    "properties": {"x y": {"type": "number"}, "class": TEXT},
                    "required": ["x y"],
                },
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            "options",
        ),
        tool("read_file", output={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}),
        tool("str", {"big": {"enum": [10**30, 5]}}),
        *(tool(name) for name in ("Any", "", "123", "größe", "import", "__init__", "MyShopClient")),
    ],
)

USE = """
async def use() -> None:
    async with MyShopClient_2("x") as client:
        items = await client.tools.list(from_="a", a_b=None)
        number: int = items[0]["id"]
        literal: Literal["a", 1, True] | float | None = items[0].get("tag")
        answer: ToolResult = await client.tools.read_file_2(options={"x y": 1.5})
        done: bool = (await client.tools.read_file())["ok"]
        names = [definition.name async for definition in client.tools()]
        print(number, literal, answer, done, names)
"""


def test_modules_pass_pyright_in_strict_mode(tmp_path: Path) -> None:
    module = write_stubs(RICH)
    wrong = "\nasync def wrong(client: MyShopClient_2) -> None:\n    await client.tools.{}\n"
    codes = {
        "module": module.source + USE + STRICT,
        "empty": write_stubs(ServerDescription()).source + STRICT,
        "unknown tool": module.source + wrong.format("lst()"),
        "missing argument": module.source + wrong.format("list()"),
        "wrong type": module.source + wrong.format("list(from_=1)"),
    }
    findings = list(diagnosed(codes, tmp_path))
    assert {finding.partition(":")[0] for finding in findings} == {"unknown tool", "missing argument", "wrong type"}, (
        findings
    )


def test_names_that_are_no_identifiers_are_changed() -> None:
    assert write_stubs(RICH).methods == {
        "list": "list",
        "read-file": "read_file_2",
        "read_file": "read_file",
        "str": "str",
        "Any": "Any_2",
        "": "tool",
        "123": "tool_123",
        "größe": "gr_e",
        "import": "import_",
        "__init__": "init",
        "MyShopClient": "MyShopClient",
    }


# --- at run time ---------------------------------------------------------------------------------


def imported(source: str) -> ModuleType:
    module = ModuleType("stubs")
    exec(compile(source, "stubs.py", "exec"), vars(module))
    return module


def make_server() -> Server:
    server = Server("shop", version="1")

    @server.tool(name="sum-up")
    def sum_up(a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    @server.tool
    def person(name: str) -> dict[str, Any]:
        return {"name": name, "age": 3}

    @server.tool(structured=False)
    def hello(to: str | None = None) -> Any:
        return f"hello {to}"

    return server


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_methods_call_the_tools(revision: str) -> None:
    from trunkline import Client
    from trunkline.cli.description import describe_server

    server = make_server()
    async with Client(server) as plain:
        module = imported(write_stubs(await describe_server(plain)).source)
    async with module.ShopClient(server, revision=revision) as client:
        assert await client.tools.sum_up(a=1) == 3
        assert await client.tools.sum_up(a=1, b=5) == 6
        assert await client.tools.person(name="Ann") == {"name": "Ann", "age": 3}
        assert [definition.name async for definition in client.tools()] == ["sum-up", "person", "hello"]


async def test_method_without_an_output_schema_returns_the_result() -> None:
    module = imported(write_stubs(ServerDescription(tools=[tool("hello", {"to": TEXT})])).source)
    async with module.ServerClient(make_server()) as client:
        result = await client.tools.hello(to="you")
    assert isinstance(result, ToolResult)
    assert result.text == "hello you"


# --- hostile servers -----------------------------------------------------------------------------

ATTACKS = [
    '"""\nimport os; os.system("x")\n"""',
    "'); __import__('os').system('x'); ('",
    "a\nimport os",
    "a\\",
    'a"',
    "\\N{DIGIT ONE}",
    "{evil}",
    "\u2028import os",
    "\x1b[31m\r\nimport os",
    "x: int = __import__('os')",
    "# type: ignore",
    "\ud800",
]
HOSTILE = st.one_of(st.sampled_from(ATTACKS), st.text(max_size=30))
ALLOWED_CALLS = {"TypedDict", "self._value", "self._result"}


def described(text: str) -> ServerDescription:
    schema: dict[str, Any] = {
        "type": "object",
        "description": text,
        "properties": {
            text: {"type": "object", "properties": {text: {"enum": [text]}, "b": {"$ref": f"#/$defs/{text}"}}}
        },
        "required": [text, "b"],
        "$defs": {text: {"type": "object", "properties": {text: {"const": text}}}},
    }
    tools = [
        Tool(name=name, input_schema=schema, output_schema=schema, description=about, title=text)
        for name, about in ((text, text), ("t", None), (f"t {text}", text))
    ]
    return ServerDescription(server=Implementation(name=text, version=text), tools=tools)


def check_code(source: str) -> None:
    """Assert that a module consists of imports, classes of types, and methods that call tools."""
    tree = ast.parse(source)
    allowed = (ast.Expr, ast.ImportFrom, ast.Import, ast.ClassDef, ast.Assign)
    assert [node for node in tree.body if not isinstance(node, allowed)] == []
    imports = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert set(imports) <= {"builtins"}
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} <= {
        "__future__", "typing", "msgspec", "trunkline",
    }  # fmt: skip
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert {call for call in calls if not call.endswith("Tools")} <= ALLOWED_CALLS
    assert all(isinstance(node.value, ast.Constant) for node in ast.walk(tree) if isinstance(node, ast.Expr))
    assert all(line.isprintable() for line in source.split("\n"))


@given(HOSTILE)
@example("True")
def test_text_of_a_server_never_becomes_code(text: str) -> None:
    check_code(write_stubs(described(text)).source)


@pytest.mark.parametrize("text", ATTACKS)
def test_known_attacks_stay_text(text: str) -> None:
    module = write_stubs(described(text))
    check_code(module.source)
    tree = ast.parse(module.source)
    called = [
        ast.literal_eval(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._value"
    ]
    assert called == [text, "t", f"t {text}"]


def test_endless_schemas_end() -> None:
    levels = {
        f"l{at}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/l{at + 1}"}, "b": {"anyOf": [{"$ref": f"#/$defs/l{at + 1}"}] * 2}},
        }
        for at in range(100)
    }
    loop = {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "array", "items": {"$ref": "#/$defs/x"}}]}}
    deep: dict[str, Any] = {
        "type": "object",
        "properties": {f"p{n}": {"type": "object", "properties": {"x": TEXT}} for n in range(3000)},
    }
    tools = [
        Tool(name="a", input_schema={"type": "object", "properties": {"a": {"$ref": "#/$defs/l0"}}, "$defs": levels}),
        Tool(name="b", input_schema={"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": loop}),
        Tool(name="c", input_schema=deep),
    ]
    check_code(write_stubs(ServerDescription(tools=tools)).source)


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> str:
    (tmp_path / "shop.json").write_text(
        '{"server": {"name": "shop", "version": "1"}, "tools": [{"name": "a.b", "inputSchema": {}}]}'
    )
    return str(tmp_path / "shop.json")


def test_module_is_printed_or_written(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "stubs", server)
    assert (code, "class ShopClient(Client):" in out) == (0, True)
    path = tmp_path / "shop_client.py"
    assert run(capsys, "stubs", server, "-o", str(path)) == (0, "", f"ShopClient with 1 tools written to {path}\n")
    assert path.read_text() == out
    assert sys.modules.get("shop_client") is None


def test_json_has_the_names(capsys: pytest.CaptureFixture[str], server: str) -> None:
    report = json.loads(run(capsys, "stubs", server, "--json")[1])
    assert (report["client"], report["methods"]) == ("ShopClient", {"a.b": "a_b"})
    assert "async def a_b(" in report["module"]


def test_unwritable_file_is_wrong_usage(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    code, _, err = run(capsys, "stubs", server, "-o", str(tmp_path / "no" / "x.py"))
    assert code == 2
    assert "cannot write" in err
