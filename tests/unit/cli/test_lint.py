"""`trunkline lint`: its rules, one violation and one correct server for each, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.commands import run

from trunkline.cli import lint_rules
from trunkline.cli.description import ServerDescription
from trunkline.cli.lint_rules import RULES, estimate_tokens, find_problems, select_rules
from trunkline.protocol.types import Prompt, PromptArgument, Resource, Tool

PAGE = Path(__file__).parents[3] / "docs/how-to/command-line.md"
TEXT = {"type": "string", "description": "A text."}


def tool(schema: dict[str, Any] | None = None, name: str = "t", description: str | None = "Does it.") -> Tool:
    whole = {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False}
    return Tool(name=name, input_schema=whole if schema is None else schema, description=description)


def argument(schema: dict[str, Any], **root: Any) -> Tool:
    """A tool whose argument has this schema."""
    described = {"description": "An argument.", **schema}
    properties = {"type": "object", "properties": {"a": described}, "required": ["a"], "additionalProperties": False}
    return tool({**properties, **root})


def violated(*tools: Tool, selected: str = "all", **more: Any) -> list[str]:
    description = ServerDescription(tools=[*tools], **more)
    return [rule.id for rule, _ in find_problems(description, select_rules([selected]))]


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


VIOLATIONS: dict[str, list[Tool]] = {
    "name-pattern": [tool(name="read file")],
    "name-dots": [tool(name="files.read")],
    "name-length": [tool(name="n" * 65)],
    "name-duplicate": [tool(), tool()],
    "name-case": [tool(name="read_file"), tool(name="read-File")],
    "description-tool": [tool(description=" ")],
    "description-argument": [argument({"type": "string", "description": ""})],
    "description-length": [tool(description="d" * 1025)],
    "text-hidden": [tool(description="a\u202eb")],
    "schema-valid": [argument({"type": "text"})],
    "schema-object": [tool({"properties": {}, "additionalProperties": False})],
    "schema-root-ref": [tool({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "additionalProperties": False}}})],
    "schema-root-union": [tool({"type": "object", "additionalProperties": False, "enum": ["a"]})],
    "schema-reference": [argument({"$ref": "https://example.org/schema"})],
    "schema-recursion": [
        argument({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}})
    ],
    "schema-items": [argument({"type": "array"})],
    "schema-tuple": [argument({"type": "array", "prefixItems": [{"type": "string"}]})],
    "schema-not": [argument({"type": "string", "not": {"type": "string", "enum": [""]}})],
    "schema-pattern-properties": [argument({"type": "object", "patternProperties": {}, "additionalProperties": False})],
    "schema-condition": [argument({"type": "string", "if": {"type": "string"}})],
    "schema-untyped": [argument({})],
    "schema-property-name": [
        tool({"type": "object", "properties": {"a b": TEXT}, "required": ["a b"], "additionalProperties": False})
    ],
    "schema-depth": [argument(nested(11))],
    "size-count": [tool(name=f"t{number}") for number in range(129)],
    "size-tool": [argument({"type": "string", "enum": ["x" * 90] * 100})],
    "openai-strict-objects": [argument({"type": "object"})],
    "openai-strict-required": [tool({"type": "object", "properties": {"a": TEXT}, "additionalProperties": False})],
    "openai-strict-keywords": [argument({"type": "string", "default": "x"})],
    "gemini-keywords": [argument({"type": "integer", "exclusiveMinimum": 1})],
    "gemini-types": [argument({"type": ["string", "null"]})],
    "gemini-enums": [argument({"type": "integer", "enum": [1]})],
    "gemini-formats": [argument({"type": "string", "format": "uri"})],
}
EXPECTED_TOO = {"gemini-keywords"}  # of a correct tool: strict mode requires what Gemini rejects


def test_every_rule_has_a_violation_here() -> None:
    assert {rule.id for rule in RULES} == {*VIOLATIONS, "description-other"}


@pytest.mark.parametrize(("rule", "tools"), VIOLATIONS.items(), ids=VIOLATIONS)
def test_violation_is_found(rule: str, tools: list[Tool]) -> None:
    assert rule in violated(*tools)
    assert set(violated(*tools, selected=rule)) == {rule}


def test_correct_tool_violates_nothing() -> None:
    assert set(violated(tool())) == EXPECTED_TOO


def test_other_entries_need_descriptions() -> None:
    resources, prompts = [Resource(uri="a:b", name="n")], [Prompt(name="p", arguments=[PromptArgument(name="a")])]
    found = violated(selected="description", resources=resources, prompts=prompts)
    assert sorted(found) == ["description-argument", "description-other", "description-other"]


def test_description_of_a_reference_counts() -> None:
    target = {"$defs": {"a": {"type": "string", "description": "A text."}}}
    referring = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"], **target}
    assert "description-argument" not in violated(tool(referring))


def test_control_characters_in_schemas_are_found() -> None:
    assert violated(argument({"type": "string", "enum": ["\x1b[31m"]}), selected="text") == ["text-hidden"]
    assert violated(tool(description="line\n\tline \N{FAMILY}"), selected="text") == []


def test_groups_and_ids_select_rules() -> None:
    assert {rule.id for rule in select_rules(["gemini"])} == {
        "gemini-keywords", "gemini-types", "gemini-enums", "gemini-formats",
    }  # fmt: skip
    assert all(rule.default for rule in select_rules([]))
    assert {rule.id for rule in select_rules(["all"], ["openai-strict", "gemini"])} == {
        rule.id for rule in select_rules([])
    }
    assert [rule.id for rule in select_rules(["name"], ["name-dots", "name-case"])] == [
        "name-pattern", "name-length", "name-duplicate",
    ]  # fmt: skip
    with pytest.raises(LookupError):
        select_rules(["nam"])


def test_estimate_is_a_token_for_four_bytes() -> None:
    one = Tool(name="t", input_schema={}, description="é")
    assert estimate_tokens(one) == -(-len('{"name":"t","description":"é","input_schema":{}}'.encode()) // 4)


def test_huge_schema_is_cut_off() -> None:
    wide = argument({"type": "object", "properties": {f"p{n}": {"type": "array"} for n in range(50_000)}})
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    loops = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{m}"} for m in range(0, 300, 7)]} for n in range(300)}
    found = violated(wide, argument(deep), argument({"$ref": "#/$defs/d0"}, **{"$defs": loops}))
    assert {"schema-items", "schema-depth", "schema-recursion"} <= set(found)


def test_schemas_of_all_tools_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_rules, "_MAX_NODES", 3)
    subject = lint_rules.Subject(ServerDescription(tools=[tool(), tool(), tool()]))
    assert [len(nodes) for _, _, nodes in subject.nodes] == [2, 1, 0]


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "s.json"
    description = {
        "tools": [{"name": "a.b", "inputSchema": {"type": "object", "properties": {"x": {"type": "array"}}}}]
    }
    path.write_text(json.dumps(description))
    return str(path)


def test_warnings_alone_are_exit_code_0(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, err = run(capsys, "lint", server, "--select", "name")
    assert (code, err) == (0, "1 tools, about 25 tokens: 0 failed, 1 warnings\n")
    assert out.splitlines() == [
        "warning  tool 'a.b': the name has a dot",
        "         Rule: name-dots: OpenAI and Anthropic reject names with a dot, so hosts rename or drop the tool",
        "         Fix: use `_` instead of `.`",
    ]
    assert run(capsys, "lint", server, "--select", "name", "--strict")[0] == 1
    assert run(capsys, "lint", server, "--select", "name", "--ignore", "name-dots", "--strict")[0] == 0


def test_failed_rule_is_exit_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"tools": [{"name": "t", "inputSchema": {"type": "object", "anyOf": []}}]}')
    assert run(capsys, "lint", str(tmp_path / "s.json"), "--select", "schema-root-union")[0] == 1


def test_budget_is_checked(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "lint", server, "--select", "size", "--budget", "25")[0] == 0
    code, out, _ = run(capsys, "lint", server, "--select", "size", "--budget", "24", "--json")
    report = json.loads(out)
    assert (code, report["tokens"], report["tools"]) == (1, 25, [{"name": "a.b", "tokens": 25}])
    assert [one["rule"] for one in report["problems"]] == ["size-budget"]


def test_unknown_rule_is_wrong_usage(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, _, err = run(capsys, "lint", server, "--ignore", "nope")
    assert code == 2
    assert "no rule or group nope" in err


def test_rules_are_listed_without_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "lint", "--rules")
    assert code == 0
    assert [rule.id for rule in RULES if f"{rule.id} ({rule.verdict}" not in out] == []


def test_hostile_names_are_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "\x1b[2J\x9b\u202e\r"
    schema = {"type": text, "properties": {text: {"$ref": text, "not": {}}}}
    (tmp_path / "s.json").write_text(json.dumps({"tools": [{"name": text, "inputSchema": schema}]}))
    for more in ((), ("--json",)):
        code, out, _ = run(capsys, "lint", str(tmp_path / "s.json"), "--select", "all", *more)
        assert code == 1
        assert all(line.isprintable() for line in out.split("\n"))
