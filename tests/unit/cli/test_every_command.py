"""Every command in a terminal and in a pipe: its result, Ctrl+C, and text of a server that attacks the terminal."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.unit.cli.commands import run
from tests.unit.cli.screen import Screen, screen_of

from trunkline.cli.main import COMMANDS

SHOP = '''
from trunkline import Context, Server

server = Server("shop", version="1.0")

@server.tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

@server.tool(task=True)
async def report() -> str:
    return "written"

@server.tool
async def pay(ctx: Context) -> str:
    return (await ctx.elicit_url("Pay here", "https://pay.example/1")).action

@server.tool
async def confirm(ctx: Context) -> bool:
    return (await ctx.elicit("Sure?", bool)).data

@server.resource("docs://readme")
def readme() -> str:
    return "Read me."

@server.prompt
def review(style: str) -> str:
    """Review code."""
    return f"Review it in {style} style."

@server.completion(prompt="review", argument="style")
def styles(text: str) -> list[str]:
    return [one for one in ("short", "long") if one.startswith(text)]
'''
SILENT = "import time; open('started', 'w').close(); time.sleep(3600)"  # a server that never responds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a server; its user has no other files."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "next.py").write_text(SHOP.replace("b: int = 1", "b: int"))
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"other": {"command": "true"}}}\n')
    (tmp_path / "silent.py").write_text(SILENT)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Case(NamedTuple):
    """A command line, a text of its screen, one of its standard output in a pipe, and its exit code."""

    words: str
    screen: str
    pipe: str
    code: int = 0

    def __str__(self) -> str:
        return self.words


CASES = [
    Case("settings --work-timeout 20", "work_timeout  20.0  --work-timeout", "work_timeout  20.0  --work-timeout\n"),
    Case("list shop.py", "add(a: integer, b: integer = 1) -> integer", "\nPrompts\n  review(style)  Review code.\n"),
    Case("call shop.py add a=5 b=3", "8", "8\n"),
    Case("read shop.py docs://readme", "Read me.", "Read me.\n"),
    Case("prompt shop.py review style=short", "user:\nReview it in short style.", "user:\nReview it in short style.\n"),
    Case("complete shop.py review style l", "long", "long\n"),
    Case("tasks shop.py --revision 2025-11-25 --json", '{"tasks":[]}', '{"tasks":[]}\n'),
    Case("ping shop.py", "shop 1.0, revision 2026-07-28", " ms\n"),
    Case("bench shop.py --duration 0.2 --warm-up 0 --concurrency 1", "throughput ", "throughput "),
    Case("completion fish", "complete -c trunkline", "complete -c trunkline"),
    Case(
        "install shop.py --host cursor --config mcp.json --dry-run",
        '+{"mcpServers": {"other": {"command": "true"}, "shop": {',
        '"shop": {',
    ),
    Case("uninstall other --host cursor --config mcp.json --dry-run", '-{"mcpServers": {"other"', "-"),
    Case("export shop.py --host codex", "[mcp_servers.shop]", "[mcp_servers.shop]\n"),
    Case("new garden", "created garden with server.py, tests/test_server.py", "  cd garden\n  python -m pytest\n"),
    Case("inspect shop.py", "a  integer  required", "      a  integer  required\n"),
    Case("diff shop.py next.py", "1 breaking, 0 compatible", "breaking    tool 'add': argument 'b': required now\n", 1),
    Case("lint shop.py --select description", "warning  tool 'add': no description of a, b", "warning  tool 'add'"),
    Case("doctor shop.py", "ok       handshake: ", "ok       handshake: "),
    Case("stubs shop.py", "class ShopClient(Client):", "class ShopClient(Client):\n"),
    Case("auth status https://example.org/mcp", "not logged in", "https://example.org/mcp: not logged in\n", 1),
    Case("store check none.db", "none.db", "", 1),
    Case("pins list --store pins.json", "no pins in pins.json", ""),
    Case("receipts verify home", "the folder home has no receipts", "", 2),
    Case("ps home", "no serving process was found", "", 1),
    Case("gateway mcp.json --check --no-pins --no-cache", "other  failing  ", "other  failing  ", 1),
    Case("conformance true", "pass a URL or a Python file, not 'true'", "", 2),
]
LASTING = {  # commands that Ctrl+C ends, with a text that shows that they run, if there is one, and their exit codes
    "run shop.py": ("start it:  trunkline run shop.py\nCtrl+C or Ctrl+D ends it", 0),
    "run shop.py --http --port 0": ("shop listens at http://127.0.0.1:", 0),
    "run shop.py --http --port 0 --reload": ("shop listens at http://127.0.0.1:", 0),
    "run shop.py --http --port 0 --workers 2": ("shop listens at http://127.0.0.1:", 0),
    "dev shop.py --port 0": ("shop listens at http://127.0.0.1:", 0),
    "gateway mcp.json --no-pins --no-cache": ("start it:  trunkline gateway mcp.json", 0),
    "gateway mcp.json --http --port 0 --no-pins --no-cache": ("gateway listens at http://127.0.0.1:", 0),
    "watch shop.py": ("waiting for notifications; Ctrl+C ends", 130),
    "top home": ("no serving process was found", 130),
    "call shop.py confirm": ("[y/n", 130),
    "call shop.py pay": ("Open it? [y/N]", 130),
    "ping 'python silent.py'": ("", 130),
    "shell 'python silent.py'": ("", 130),
    "inspect 'python silent.py'": ("", 130),
    "doctor 'python silent.py'": ("", 130),
    "bench 'python silent.py'": ("", 130),
    "install shop.py --host cursor --config mcp.json": ("Change mcp.json? [y/N]", 130),
    "uninstall other --host cursor --config mcp.json": ("Change mcp.json? [y/N]", 130),
}


def assert_clean(screen: Screen) -> None:
    """Assert that a command has left the terminal as it was."""
    assert screen.cursor_column == 0
    assert not screen.cursor_hidden
    assert screen.echoes
    assert "Traceback" not in screen.text
    assert "Exception" not in screen.text


def test_every_command_is_tried_in_a_terminal() -> None:
    elsewhere = {"shell"}  # in test_terminal.py
    assert {shlex.split(words)[0] for words in [*map(str, CASES), *LASTING]} | elsewhere == {*COMMANDS}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_command_in_a_terminal_and_in_a_pipe(case: Case, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    with screen_of(*shlex.split(case.words)) as screen:
        assert screen.ended() == case.code, screen.text
        assert case.screen in screen.text
        assert_clean(screen)
    if case.words.startswith("new "):
        (folder / "garden").rename(folder / "first")
    code, out, err = run(capsys, *shlex.split(case.words))
    assert (code, case.pipe in out) == (case.code, True), out + err
    assert "\x1b" not in out + err


@pytest.mark.parametrize("words", LASTING)
def test_ctrl_c_ends_a_command_and_leaves_the_terminal_clean(words: str, folder: Path) -> None:
    shown, code = LASTING[words]
    with screen_of(*shlex.split(words)) as screen:
        screen.until(shown or (folder / "started").exists)
        screen.send("\x03")
        assert screen.ended() == code, screen.text
        assert_clean(screen)


# --- text of a server ----------------------------------------------------------------------------

EVIL = "\x1b[2J\x1b[95m\x1b]0;owned\x07\x9b2J\x00\b\r\u202e\u2028x"
HOSTILE = f"""
import json, sys

E = {EVIL!a}
TASK = {{"taskId": "t" + E, "status": "completed", "statusMessage": E, "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": 1000}}
TOOL = {{"name": "say", "title": E, "description": E, "annotations": {{"title": E}},
        "inputSchema": {{"type": "object", "title": E, "required": ["a" + E], "properties": {{
            "a" + E: {{"type": "string", "description": E, "default": E}}, "b": {{"enum": [E, "b"], "description": E}}}}}},
        "outputSchema": {{"type": "object", "properties": {{"r" + E: {{"type": "string", "description": E}}}}}}}}
RESULTS = {{
    "initialize": {{"protocolVersion": "2025-11-25", "serverInfo": {{"name": E, "version": E, "title": E}},
                   "instructions": E,
                   "capabilities": {{"tools": {{"listChanged": True}}, "resources": {{"subscribe": True}}, "prompts": {{}}, "logging": {{}},
                                    "completions": {{}}, "tasks": {{"list": {{}}, "cancel": {{}}}}, E: {{E: True}}}}}},
    "ping": {{}},
    "logging/setLevel": {{}},
    "resources/subscribe": {{}},
    "tools/list": {{"tools": [TOOL, {{**TOOL, "name": "fail" + E}}]}},
    "tools/call": {{"content": [{{"type": "text", "text": E}}, {{"type": "image", "data": E, "mimeType": E}},
                               {{"type": "resource_link", "uri": "x:" + E, "name": E}}], "structuredContent": {{"r" + E: E}}}},
    "resources/list": {{"resources": [{{"uri": "docs://" + E, "name": E, "mimeType": E, "description": E}}]}},
    "resources/templates/list": {{"resourceTemplates": [{{"uriTemplate": "docs://{{name}}" + E, "name": E}}]}},
    "resources/read": {{"contents": [{{"uri": "docs://" + E, "text": E, "mimeType": E}}]}},
    "prompts/list": {{"prompts": [{{"name": "p" + E, "description": E, "arguments": [{{"name": "a" + E, "description": E}}]}}]}},
    "prompts/get": {{"description": E, "messages": [{{"role": "user", "content": {{"type": "text", "text": E}}}}]}},
    "completion/complete": {{"completion": {{"values": [E], "hasMore": True, "total": 5}}}},
    "tasks/list": {{"tasks": [TASK]}},
    "tasks/get": TASK,
    "tasks/cancel": TASK,
    "tasks/result": {{"content": [{{"type": "text", "text": E}}], "isError": True}},
}}

def send(**message):
    sys.stdout.write(json.dumps({{"jsonrpc": "2.0", **message}}) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") in {{"notifications/initialized", "tools/call", "logging/setLevel"}}:
        print(E, file=sys.stderr, flush=True)
        send(method="notifications/message", params={{"level": "error", "logger": E, "data": {{E: E}}}})
    if message.get("method") == "tools/call" and "progressToken" in message["params"].get("_meta", {{}}):
        token = message["params"]["_meta"]["progressToken"]
        send(method="notifications/progress", params={{"progressToken": token, "progress": 1, "total": 2, "message": E}})
    if "id" in message and "method" in message:
        found = RESULTS.get(message["method"])
        if message["method"] == "prompts/get" and message["params"]["name"] == "bad" or found is None:
            send(id=message["id"], error={{"code": -32601, "message": E, "data": {{E: E}}}})
        else:
            send(id=message["id"], result=found)
    if message.get("method") == "resources/subscribe":
        send(method="notifications/resources/updated", params={{"uri": "docs://x", "title": E, "_meta": {{E: E}}}})
"""
PRINTING = [  # commands that print text of a server; {} is the target
    "list {}",
    "call {} say b=b --log-level debug --stderr",
    "call {} say c=1",
    "read {} docs://x",
    "prompt {} p",
    "prompt {} bad",
    "complete {} p a",
    "tasks {}",
    "tasks {} get t",
    "tasks {} result t",
    "tasks {} cancel t",
    "watch {} docs://x --count 1",
    "ping {}",
    "bench {} say b=b --duration 0.1 --warm-up 0 --concurrency 1",
    "inspect {}",
    "inspect {} --format markdown",
    "inspect {} --format json",
    "diff {} catalog.json",
    "lint {} --select all",
    "doctor {}",
    "stubs {}",
    "install mcp.json:hostile --host cursor --config mcp.json --name new --dry-run",
    "install mcp.json:none --host cursor --dry-run",
    "export mcp.json:hostile --host zed --name new",
    "export mcp.json:hostile --host codex --name new",
    "uninstall none --host cursor --config mcp.json",
]
OURS = re.compile(  # colours, the line of progress, and the chart of rich
    r"\x1b\[(?:0|1|2|3[0-6]|39|49|1;3[0-6])?m|\x1b\[2?K|\x1b\[1A|\x1b\[\?25[hl]|\r"
)


@pytest.fixture
def hostile(folder: Path) -> str:
    (folder / "hostile.py").write_text(HOSTILE)
    (folder / "catalog.json").write_text(json.dumps({"tools": [{"name": EVIL, "inputSchema": {}}]}))
    entry = {"command": EVIL, "args": [EVIL], "env": {EVIL: EVIL}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"hostile": entry, EVIL: entry}}, indent=2))
    return f"'{sys.executable} hostile.py'"


def assert_escaped(text: str) -> None:
    """Assert that a text has no control characters except for line ends and tabs."""
    assert {char for char in text if not char.isprintable()} <= {"\n", "\t"}, text


@pytest.mark.parametrize("words", PRINTING)
def test_server_cannot_control_the_terminal(words: str, hostile: str) -> None:
    with screen_of(*shlex.split(words.format(hostile))) as screen:
        screen.ended()
        written = screen.raw.decode()
        assert "Traceback" not in written
        assert screen.title == ""
        assert_escaped(OURS.sub("", written))
        assert words.startswith("bench") or re.search(r"\\(x|u00|U000000)1[bB]\[95m", written)


@pytest.mark.parametrize("words", [*PRINTING, *(f"{words} --json" for words in PRINTING if "--format" not in words)])
def test_piped_text_of_a_server_is_escaped(words: str, hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *shlex.split(words.format(hostile)))
    assert_escaped(out + err)
    if words.endswith("--json") and out:
        json.loads(out)
    assert code in {0, 1, 2}, err
