"""`trunkline diff`: breaking and compatible changes between two versions of a server."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.commands import run

from trunkline.cli.catalog_diff import Change, compare_descriptions
from trunkline.cli.description import ServerDescription
from trunkline.cli.schema_diff import compare_schemas
from trunkline.protocol.types import (
    Implementation,
    Prompt,
    PromptArgument,
    Resource,
    ResourceTemplate,
    Tool,
    ToolAnnotations,
    ToolExecution,
)


def tool(properties: dict[str, Any] | None = None, required: tuple[str, ...] = (), **more: Any) -> ServerDescription:
    schema = {"type": "object", "properties": properties or {}, "required": [*required]}
    return ServerDescription(tools=[Tool(name="t", input_schema=schema, **more)])


def only(old: ServerDescription, new: ServerDescription) -> tuple[bool, str]:
    """The only change from one description to another."""
    [change] = compare_descriptions(old, new)
    return change.breaking, change.text


TEXT, NUMBER = {"type": "string"}, {"type": "number"}


@pytest.mark.parametrize(
    ("old", "new", "breaking", "text"),
    [
        (tool(), ServerDescription(), True, "removed"),
        (ServerDescription(), tool(), False, "new"),
        (tool(), tool({"a": TEXT}, ("a",)), True, "argument 'a': new and required"),
        (tool(), tool({"a": TEXT}), False, "argument 'a': new and optional"),
        (tool({"a": TEXT}), tool(), True, "argument 'a': removed"),
        (tool({"a": TEXT}), tool({"a": TEXT}, ("a",)), True, "argument 'a': required now"),
        (tool({"a": TEXT}, ("a",)), tool({"a": TEXT}), False, "argument 'a': optional now"),
        (
            tool({"a": NUMBER}),
            tool({"a": {"type": "integer"}}),
            True,
            "argument 'a': the type was number and is integer",
        ),
        (
            tool({"a": {"type": "integer"}}),
            tool({"a": NUMBER}),
            False,
            "argument 'a': the type was integer and is number",
        ),
        (tool({"a": TEXT}), tool({"a": NUMBER}), True, "argument 'a': the type was string and is number"),
        (
            tool({"a": {"enum": ["x", "y"]}}),
            tool({"a": {"enum": ["x"]}}),
            True,
            "argument 'a': the value \"y\" is no longer accepted",
        ),
        (
            tool({"a": {"enum": ["x"]}}),
            tool({"a": {"enum": ["x", "y"]}}),
            False,
            "argument 'a': the value \"y\" is accepted too",
        ),
        (
            tool({"a": TEXT}),
            tool({"a": {"type": "string", "enum": ["x"]}}),
            True,
            "argument 'a': only these values are accepted: \"x\"",
        ),
        (tool({"a": TEXT}), tool({"a": {"type": ["string", "null"]}}), False, "argument 'a': null is accepted too"),
        (
            tool({"a": {"anyOf": [TEXT, {"type": "null"}]}}),
            tool({"a": {"type": ["null", "string"]}, "b": {}}),
            False,
            "argument 'b': new and optional",
        ),
        (tool({"a": TEXT}), tool({"a": {"type": "string", "maxLength": 5}}), True, "argument 'a': `maxLength`: 5"),
        (
            tool({"a": {"type": "array", "items": TEXT}}),
            tool({"a": {"type": "array", "items": NUMBER}}),
            True,
            "argument 'a[]': the type was string and is number",
        ),
        (
            tool({"a": {"type": "string", "pattern": "x"}}),
            tool({"a": TEXT}),
            False,
            "argument 'a': `pattern` was removed",
        ),
        (tool(output_schema={"type": "object"}), tool(), True, "the output schema was removed"),
        (tool(), tool(output_schema={"type": "object"}), False, "the output schema is new"),
        (
            tool(output_schema=NUMBER),
            tool(output_schema={"type": "integer"}),
            False,
            "result: the type was number and is integer",
        ),
        (
            tool(output_schema={"enum": ["x"]}),
            tool(output_schema={"enum": ["x", "y"]}),
            True,
            'result: the value "y" is accepted too',
        ),
        (tool(annotations=ToolAnnotations(read_only_hint=True)), tool(), True, "readOnlyHint was true and is false"),
        (
            tool(),
            tool(annotations=ToolAnnotations(destructive_hint=False)),
            False,
            "destructiveHint was true and is false",
        ),
        (
            tool(),
            tool(execution=ToolExecution(task_support="required")),
            True,
            "calls as a task: forbidden before, required now",
        ),
        (tool(description="a"), tool(description="b"), False, "the description has changed"),
    ],
)
def test_change_of_a_tool(old: ServerDescription, new: ServerDescription, breaking: bool, text: str) -> None:
    assert only(old, new) == (breaking, text)


def prompt(*arguments: PromptArgument) -> ServerDescription:
    return ServerDescription(prompts=[Prompt(name="p", arguments=[*arguments])])


def server(version: str = "1", **more: Any) -> ServerDescription:
    return ServerDescription(server=Implementation(name="s", version=version), **more)


@pytest.mark.parametrize(
    ("old", "new", "breaking", "text"),
    [
        (ServerDescription(resources=[Resource(uri="a:b", name="n")]), ServerDescription(), True, "removed"),
        (
            ServerDescription(
                resource_templates=[ResourceTemplate(uri_template="a:{b}", name="n", mime_type="text/plain")]
            ),
            ServerDescription(
                resource_templates=[ResourceTemplate(uri_template="a:{b}", name="n", mime_type="text/html")]
            ),
            True,
            "the MIME type was 'text/plain' and is 'text/html'",
        ),
        (prompt(), prompt(PromptArgument(name="a", required=True)), True, "argument 'a': new and required"),
        (prompt(), prompt(PromptArgument(name="a")), False, "argument 'a': new and optional"),
        (prompt(PromptArgument(name="a")), prompt(), True, "argument 'a': removed"),
        (
            prompt(PromptArgument(name="a")),
            prompt(PromptArgument(name="a", required=True)),
            True,
            "argument 'a': required now",
        ),
        (server("1"), server("2"), False, "the version was '1' and is '2'"),
        (
            server(revision="2026-07-28"),
            server(revision="2025-11-25"),
            True,
            "the newest common revision was 2026-07-28 and is 2025-11-25",
        ),
        (server(instructions="a"), server(), False, "the instructions have changed"),
        (
            server(capabilities={"resources": {"subscribe": True}}),
            server(capabilities={"resources": {"subscribe": False}}),
            True,
            "the capability 'resources.subscribe' was removed",
        ),
        (
            server(capabilities={"a": {}, "b": {"c": True}}),
            server(capabilities={"a": {}}),
            True,
            "the capability 'b' was removed",
        ),
    ],
)
def test_change_of_another_part(old: ServerDescription, new: ServerDescription, breaking: bool, text: str) -> None:
    assert only(old, new) == (breaking, text)


def test_nested_result_without_a_member_is_breaking() -> None:
    def result(*required: str) -> ServerDescription:
        inner = {"type": "object", "properties": {"x": TEXT}, "required": [*required]}
        return tool(output_schema={"type": "object", "properties": {"in": inner}})

    assert only(result("x"), result()) == (True, "result 'in.x': optional now")
    assert only(result(), result("x")) == (False, "result 'in.x': required now")


def test_recursive_schemas_are_compared() -> None:
    def tree(kind: str) -> dict[str, Any]:
        node = {"type": "object", "properties": {"value": {"type": kind}, "next": {"$ref": "#/$defs/node"}}}
        return {"$ref": "#/$defs/node", "$defs": {"node": node}}

    assert [change.path for change in compare_schemas(tree("string"), tree("number"))] == ["value"]
    assert compare_schemas(tree("string"), tree("string")) == []


def test_reference_in_a_circle_ends() -> None:
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert compare_schemas(loop, loop) == []
    assert [change.effect for change in compare_schemas(loop, {"$ref": "#/$defs/b"})] == ["changed"]


def test_schema_that_doubles_with_each_level_is_cut_off() -> None:
    def doubling(kind: str) -> dict[str, Any]:
        levels = {
            f"l{at}": {
                "type": "object",
                "properties": {"a": {"$ref": f"#/$defs/l{at + 1}"}, "b": {"$ref": f"#/$defs/l{at + 1}"}},
            }
            for at in range(40)
        }
        return {"$ref": "#/$defs/l0", "$defs": {**levels, "l40": {"type": kind}}}

    changes = compare_schemas(doubling("string"), doubling("number"))
    assert changes[-1].text == "the schema is too large to be compared in all details"


def test_deeply_nested_schema_is_cut_off() -> None:
    def nested(kind: str) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": kind}
        for _ in range(300):
            schema = {"type": "array", "items": schema}
        return schema

    [change] = compare_schemas(nested("string"), nested("number"))
    assert (change.effect, change.text) == ("changed", "the schema is too large to be compared in all details")


# --- the command ---------------------------------------------------------------------------------

OLD = "from trunkline import Server\nserver = Server('s', version='1')\n@server.tool\ndef add(a: int) -> int:\n    return a\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(OLD)
    new.write_text(OLD.replace("a: int)", "a: int, b: int)"))
    return str(old), str(new)


def test_breaking_change_is_exit_code_1(capsys: pytest.CaptureFixture[str], files: tuple[str, str]) -> None:
    code, out, err = run(capsys, "diff", *files)
    assert (code, out) == (1, "breaking    tool 'add': argument 'b': new and required\n")
    assert err == "1 breaking, 0 compatible\n"


def test_saved_catalog_is_a_side(capsys: pytest.CaptureFixture[str], files: tuple[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "catalog.json"
    saved.write_text(run(capsys, "inspect", files[0], "--format", "json")[1])
    assert run(capsys, "diff", str(saved), files[0]) == (0, "", "no changes\n")
    code, out, _ = run(capsys, "diff", files[1], str(saved), "--json")
    report = json.loads(out)
    assert (code, report["breaking"], [change["text"] for change in report["changes"]]) == (
        1,
        1,
        ["argument 'b': removed"],
    )


def test_compatible_changes_can_be_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, about in (("a.json", "x"), ("b.json", "y")):
        text = {"tools": [{"name": "t", "inputSchema": {"type": "object"}, "description": about}]}
        (tmp_path / name).write_text(json.dumps(text))
    pair = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    assert run(capsys, "diff", *pair)[:2] == (0, "compatible  tool 't': the description has changed\n")
    assert run(capsys, "diff", *pair, "--breaking") == (0, "", "0 breaking, 1 compatible\n")


def test_damaged_file_is_wrong_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"tools": [{"title": 1}]}')
    code, _, err = run(capsys, "diff", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert code == 2
    assert "is no description of a server" in err


def test_names_of_a_server_are_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"tools": [{"name": "\x1b[31m\u009b", "inputSchema": {}}]}))
    (tmp_path / "b.json").write_text('{"tools": []}')
    for more in ((), ("--json",)):
        out = run(capsys, "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), *more)[1]
        assert out.strip("\n").isprintable()


def test_breaking_changes_come_first() -> None:
    changes = compare_descriptions(tool(description="a"), tool({"a": TEXT}, ("a",), description="b"))
    assert [change.breaking for change in changes] == [True, False]
    assert changes[0] == Change(True, "arguments", "tool 't'", "argument 'a': new and required")
