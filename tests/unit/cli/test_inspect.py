"""`trunkline inspect`: a server as a table, JSON and Markdown."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.commands import run

from trunkline.cli import markdown
from trunkline.cli.description import ServerDescription
from trunkline.cli.inspect import render_markdown
from trunkline.protocol.types import Implementation, Prompt, Resource, Tool

SERVER = '''
from typing import Annotated, Literal
from trunkline import Server, ToolAnnotations
server = Server("shop", version="2.0", instructions="Add first.")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, how: Literal["x", "y"] = "x") -> int:
    """Adds.

    Args:
        a: The number.
    """
    return a

@server.resource("docs://readme", mime_type="text/plain")
def readme() -> str:
    """The readme."""
    return ""

@server.resource("docs://page/{name}")
def page(name: str) -> str:
    return name

@server.prompt
def review(code: str, style: str = "short") -> str:
    """Reviews code."""
    return ""
'''


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(SERVER)
    return str(path)


def test_table_shows_everything(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, _ = run(capsys, "inspect", server)
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "shop 2.0"
    for line in (
        "revision 2026-07-28",
        "Add first.",
        'add(a: integer, how: "x" | "y" = "x") -> integer [read-only]',
        "a integer required The number.",
        'how "x" | "y" = "x"',
        "docs://readme text/plain The readme.",
        "docs://page/{name} page",
        "review(code, style?) Reviews code.",
    ):
        assert line in lines


def test_json_has_the_names_of_the_specification(capsys: pytest.CaptureFixture[str], server: str) -> None:
    one = json.loads(run(capsys, "inspect", server, "--json")[1])
    assert json.loads(run(capsys, "inspect", server, "--format", "json")[1]) == one
    assert one["server"] == {"name": "shop", "version": "2.0"}
    assert one["tools"][0]["annotations"] == {"readOnlyHint": True}
    assert one["resourceTemplates"][0]["uriTemplate"] == "docs://page/{name}"
    assert one["instructions"] == "Add first."


def test_saved_description_is_a_target(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text(run(capsys, "inspect", server, "--format", "json")[1])
    assert run(capsys, "inspect", str(tmp_path / "saved.json"))[1] == run(capsys, "inspect", server)[1]


def test_markdown_is_a_section_of_a_readme(capsys: pytest.CaptureFixture[str], server: str) -> None:
    out = run(capsys, "inspect", server, "--format", "markdown")[1]
    assert out.startswith("# shop 2.0\n\nProtocol revision 2026-07-28. Capabilities: `tools")
    assert "### `add`\n\nAdds.\n\nHints: read-only.\n\n| argument | type | default | description |\n" in out
    assert "| `a` | `integer` | required | The number. |\n" in out
    assert '| `how` | `"x" \\| "y"` | `"x"` |  |\n\nReturns `integer`.\n' in out
    assert "| `docs://readme` | text/plain | The readme. |\n" in out
    assert out.endswith("| `review(code, style?)` | Reviews code. |\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](http://b) ![c](d)", r"\[a\](http://b) !\[c\](d)"),
        ("<script>&amp;", "&lt;script>&amp;amp;"),
        ("# title\n---\n===\n~~~\n> quote", "\\# title\n\\---\n\\===\n\\~~~\n\\> quote"),
        ("a `list[int]` b", "a `list[int]` b"),
        ("unclosed ` <b>", r"unclosed \` &lt;b>"),
        (r"\` <b> `", r"\\` <b> `"),  # a code span: the backslash is escaped
        ("```\n<b>\n```", "\\`\\`\\`\n&lt;b>\n\\`\\`\\`"),
        ("- one\n- two", "- one\n- two"),
        ("\x1b[31m\u202e", r"\\x1b\[31m\\u202e"),
    ],
)
def test_text_stays_text_in_markdown(text: str, shown: str) -> None:
    assert markdown.paragraphs(text) == shown


def test_code_spans_cannot_be_left() -> None:
    assert markdown.code_span("a`b``c") == "``` a`b``c ```"
    assert markdown.fenced("a\n```\nb") == "````\na\n```\nb\n````"


def hostile(text: str) -> ServerDescription:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {text: {"type": text, "description": text, "enum": [text]}},
    }
    return ServerDescription(
        server=Implementation(name=text, version=text),
        instructions=text,
        capabilities={text: {text: True}},
        tools=[Tool(name=text, input_schema=schema, description=text)],
        resources=[Resource(uri=text, name=text, mime_type=text)],
        prompts=[Prompt(name=text, description=text)],
    )


def test_hostile_text_adds_no_line_to_markdown() -> None:
    harmless, evil = render_markdown(hostile("x")), render_markdown(hostile("x | \r\u2028\x1b[2J\x9b"))
    assert all(line.isprintable() for line in evil.splitlines())
    assert len(evil.splitlines()) == len(harmless.splitlines())


@pytest.mark.parametrize("output", [(), ("--json",), ("--format", "json"), ("--format", "markdown")])
def test_hostile_text_does_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, output: tuple[str, ...]
) -> None:
    from trunkline.wire.codec import to_json

    (tmp_path / "evil.json").write_bytes(to_json(hostile("\x1b]0;title\x07\x9b31m\u202e\x7f")))
    code, out, _ = run(capsys, "inspect", str(tmp_path / "evil.json"), *output)
    assert code == 0
    assert all(line.isprintable() for line in out.split("\n"))


def test_recursive_and_deep_schemas_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"anyOf": [deep, {"type": "array", "items": deep}]} if _ < 10 else {"type": "array", "items": deep}
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": deep}}
    (tmp_path / "deep.json").write_text(json.dumps({"tools": [{"name": "t", "inputSchema": schema}]}))
    for output in ("table", "markdown"):
        assert "…" in run(capsys, "inspect", str(tmp_path / "deep.json"), "--format", output)[1]


ENDLESS = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    params = message.get("params") or {}
    number = int(params.get("cursor") or 0)
    tool = {"name": f"t{number}", "inputSchema": {"type": "object"}}
    info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    results = {"initialize": info, "tools/list": {"tools": [tool], "nextCursor": str(number + 1)}}
    if message["method"] in results:
        answer = {"result": results[message["method"]]}
    else:
        answer = {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize("command", [("inspect",), ("lint",), ("stubs",), ("list",)])
def test_endless_list_ends_a_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "endless.txt").write_text(ENDLESS)
    code, out, err = run(capsys, *command, f"{sys.executable} {tmp_path}/endless.txt")
    assert (code, out) == (1, "")
    assert "max_list_pages" in err
