"""Commands that send requests to a server: list, call, read, prompt, complete, tasks, watch, ping."""

import io
import json
import sys
import threading
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.ports import held_port
from tests.unit.cli.commands import run

SERVER = '''
import asyncio, os
from trunkline import Context, Image, Server, ToolError

server = Server("shop", version="2.0")
import sys; print("loaded", file=sys.stdout if __name__ == "shop" else sys.stderr)

@server.tool
def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    In detail."""
    print("adding")
    return a + b

@server.tool
def fail() -> str:
    raise ToolError("no \\x1b[31mstock")

@server.tool
def picture() -> Image:
    return Image(b"\\x89PNG", mime_type="image/png")

@server.tool(task=True)
async def slow() -> str:
    return "done"

@server.tool
async def steps(ctx: Context) -> str:
    await ctx.progress(1, 2, "half")
    await ctx.info("working")
    return "done"

@server.tool(task=True)
async def endless() -> str:
    return await asyncio.Event().wait()

@server.tool
async def ask(ctx: Context) -> bool:
    return (await ctx.elicit("Sure?", bool)).data

@server.tool
async def folders(ctx: Context) -> list[str]:
    return [root.uri for root in await ctx.roots()]

@server.tool
def variable(name: str) -> str:
    return os.environ.get(name, "none")

@server.resource("docs://readme")
def readme() -> str:
    """The readme."""
    return "hello \\x1b]0;title\\x07"

@server.resource("docs://logo", mime_type="image/png")
def logo() -> bytes:
    return b"\\x89PNG"

@server.resource("docs://page/{name}")
def page(name: str) -> str:
    return name

@server.prompt
def review(code: str, style: str = "short") -> str:
    """Reviews code."""
    return f"Review {code}, {style}."

@server.completion(argument="style", prompt="review")
def styles(value: str) -> list[str]:
    return [style for style in ("short", "sharp", "long") if style.startswith(value)]

server.run()
'''


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(SERVER)
    return str(path)


def test_list_shows_signatures(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, err = run(capsys, "list", server)
    assert code == 0
    assert "  add(a: integer, b: integer = 1) -> integer  Adds two numbers.\n" in out
    assert [line for line in out.splitlines() if not line.startswith(" ") and line] == [
        "Tools",
        "Resources",
        "Resource templates",
        "Prompts",
    ]
    assert "review(code, style?)  Reviews code." in out
    assert err == "loaded\n"


def test_list_of_one_kind_as_json(capsys: pytest.CaptureFixture[str], server: str) -> None:
    _, out, _ = run(capsys, "list", server, "prompts", "--json")
    listed = json.loads(out)
    assert [*listed] == ["prompts"]
    assert listed["prompts"][0]["name"] == "review"


def test_call_prints_the_result_only(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "call", server, "add", "a=5", "b=3") == (0, "8\n", "loaded\nadding\n")


def test_options_may_stand_anywhere(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, _ = run(capsys, "call", "--timeout", "20", server, "--json", "add", "a=5", "--revision", "2025-06-18")
    assert (code, json.loads(out)["structuredContent"]) == (0, {"result": 6})


def test_failed_tool_is_exit_code_1(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, err = run(capsys, "call", server, "fail")
    assert (code, out) == (1, "")
    assert err.endswith("no \\x1b[31mstock\n")


def test_wrong_argument_shows_usage(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, _, err = run(capsys, "call", server, "add", "a=x")
    assert code == 2
    assert err.endswith("not 'x'\nusage: add(a: integer, b: integer = 1) -> integer\n")


def test_unknown_tool_has_a_suggestion(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, _, err = run(capsys, "call", server, "adds")
    assert code == 2
    assert "Did you mean" in err


def test_images_become_files(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    for name in ("image-1.png", "image-2.png"):
        _, out, _ = run(capsys, "call", server, "picture", "--save", str(tmp_path / "new"))
        assert out == f"[image, image/png, 4 bytes: {tmp_path}/new/{name}]\n"
        assert (tmp_path / "new" / name).read_bytes() == b"\x89PNG"


def test_call_as_a_task_prints_its_id(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, _ = run(capsys, "call", server, "slow", "--task", "--json")
    assert code == 0
    assert json.loads(out)["taskId"]


def test_task_of_a_server_that_ends_with_the_command_has_a_warning(
    capsys: pytest.CaptureFixture[str], server: str
) -> None:
    code, out, err = run(capsys, "call", server, "endless", "--task")
    assert (code, len(out.splitlines())) == (0, 1)
    assert "the server ends with this command, and the task too unless" in err
    assert "Traceback" not in err


def test_revision_without_a_list_of_tasks_is_explained(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, _, err = run(capsys, "tasks", server)
    assert code == 2
    assert "revision 2026-07-28 has no list of tasks; name one" in err
    assert "no tasks of this client" in run(capsys, "tasks", server, "--revision", "2025-11-25")[2]


def test_question_without_a_terminal_is_explained(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, _, err = run(capsys, "call", server, "ask")
    assert code == 1
    assert err.endswith("run the command at a terminal to answer\n")


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "tasks", server, "--revision", "2025-11-25", "--json")[1] == '{"tasks":[]}\n'


def test_action_on_a_task_needs_its_id(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, _, err = run(capsys, "tasks", server, "get")
    assert code == 2
    assert "needs the id of a task" in err


def test_log_messages_go_to_standard_error(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, err = run(capsys, "call", server, "steps", "--log-level", "info", "--revision", "2025-11-25")
    assert (code, out) == (0, "done\n")
    assert "[info] working\n" in err


def test_text_of_a_resource_is_escaped(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "read", server, "docs://readme")[1] == "hello \\x1b]0;title\\x07\n"


def test_resource_is_written_to_a_file(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    code, out, err = run(capsys, "read", server, "docs://logo", "--output", str(tmp_path / "logo.png"))
    assert (code, out) == (0, "")
    assert err.endswith(f"4 bytes written to {tmp_path}/logo.png\n")
    assert (tmp_path / "logo.png").read_bytes() == b"\x89PNG"


def test_unwritable_file_is_explained(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    code, _, err = run(capsys, "read", server, "docs://logo", "-o", str(tmp_path / "no" / "logo.png"))
    assert code == 2
    assert "cannot write" in err


def test_unknown_resource_is_exit_code_1(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "read", server, "docs://none")[0] == 1


def test_prompt_shows_messages(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "prompt", server, "review", "code=12")[1] == "user:\nReview 12, short.\n"


def test_complete_shows_values(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "complete", server, "review", "style", "sh")[1] == "short\nsharp\n"


def test_ping_measures_time(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, _ = run(capsys, "ping", server, "--count", "2", "--json")
    answer = json.loads(out)
    assert (code, len(answer["milliseconds"]), answer["server"]["name"]) == (0, 2, "shop")


def test_script_of_another_library_runs_as_a_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hidden = "import sys\nif __name__ == '__main__':\n    exec(open(sys.argv[0] + '.txt').read())\n"
    (tmp_path / "other.py").write_text(hidden)
    (tmp_path / "other.py.txt").write_text(SERVER)
    assert run(capsys, "call", str(tmp_path / "other.py"), "add", "a=1")[:2] == (0, "2\n")


def test_command_is_a_target(capsys: pytest.CaptureFixture[str], server: str) -> None:
    assert run(capsys, "call", f"{sys.executable} {server}", "add", "a=1") == (0, "2\n", "")
    code, _, err = run(capsys, "call", f"{sys.executable} {server}", "add", "a=1", "--stderr")
    assert (code, "adding\n" in err) == (0, True)


def test_unreachable_server_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list", f"{sys.executable} -c 1/0")
    assert (code, out) == (3, "")
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero at it.py:1"),
        ("x =", "cannot be imported: SyntaxError"),
        (
            "from trunkline import Server\ns = Server('a')\ns.add_tool(len, name='len', rate='often')\n",
            "at it.py:3",  # not a line of the package
        ),
        ("from trunkline import Server\na, b = Server('a'), Server('b')", "has several servers; choose one"),
    ],
)
def test_unusable_file_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "it.py").write_text(content)
    code, _, err = run(capsys, "list", str(tmp_path / "it.py"))
    assert code == 2
    assert why in err


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("none.py", "there is no file none.py"),
        ("no.module:app", "there is no module 'no.module'"),
        ("json:dumps", "dumps in json is a function, not a trunkline.Server"),
        ("json:none", "there is no 'none' in json"),
        ("none.json", "cannot read none.json"),
    ],
)
def test_wrong_target_is_explained(capsys: pytest.CaptureFixture[str], target: str, why: str) -> None:
    code, _, err = run(capsys, "list", target)
    assert code == 2
    assert why in err


def test_function_may_make_the_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(
        "from trunkline import Server\ndef make() -> Server:\n    return Server('made')\n"
    )
    assert json.loads(run(capsys, "ping", f"{tmp_path}/made.py:make()", "--json")[1])["server"]["name"] == "made"


def test_entry_of_a_configuration_file_is_a_target(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path
) -> None:
    entries = {"mcpServers": {"shop": {"command": sys.executable, "args": [server]}, "other": {"command": "x"}}}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(entries))
    assert run(capsys, "call", f"{path}:shop", "add", "a=1")[:2] == (0, "2\n")
    assert f"choose a server of {path}: {path}:shop, {path}:other" in run(capsys, "list", str(path))[2]
    assert "has no 'none'" in run(capsys, "list", f"{path}:none")[2]


def test_variables_are_passed_to_any_target(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHOP_COLOUR", "SHOP_SIZE"):
        monkeypatch.setenv(name, "before")  # restored afterwards: a Python file has the environment of this process
    path = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": [server], "env": {"SHOP_SIZE": "small", "SHOP_COLOUR": "blue"}}
    for target in (f"{path}:shop", f"{sys.executable} {server}", server):
        path.write_text(json.dumps({"mcpServers": {"shop": entry}}))
        assert run(capsys, "call", target, "variable", "name=SHOP_COLOUR", "--env", "SHOP_COLOUR=red")[1] == "red\n"
    assert run(capsys, "call", f"{path}:shop", "variable", "name=SHOP_SIZE", "--env", "A=b")[1] == "small\n"
    assert "is not of the form" in run(capsys, "list", server, "--env", "SHOP_COLOUR")[2]


class Headers(BaseHTTPRequestHandler):
    """Keeps the headers of requests, and refuses them."""

    kept: ClassVar[list[Message]] = []

    def do_POST(self) -> None:
        self.kept.append(self.headers)
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


def test_headers_are_sent_to_any_address(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    with ThreadingHTTPServer(("127.0.0.1", 0), Headers) as refusing:
        thread = threading.Thread(target=refusing.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{refusing.server_port}/mcp"
        path.write_text(json.dumps({"mcpServers": {"shop": {"url": url, "headers": {"X-Size": "small"}}}}))
        for target, size in ((f"{path}:shop", "small"), (url, None)):
            Headers.kept.clear()
            assert run(capsys, "ping", target, "--header", "X-Colour: red", "--timeout", "30")[0] in {1, 3}
            assert {(sent["X-Colour"], sent["X-Size"]) for sent in Headers.kept} == {("red", size)}
        refusing.shutdown()
        thread.join()
    assert "--header is for http:// and https://" in run(capsys, "ping", "tcp://127.0.0.1:1", "--header", "A: b")[2]


def test_folders_are_roots(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    words = ("--root", str(tmp_path / "a"), "--root", "file:///b", "--json")
    _, out, _ = run(capsys, "call", server, "folders", *words)
    assert json.loads(out)["structuredContent"] == [(tmp_path / "a").as_uri(), "file:///b"]
    code, _, err = run(capsys, "call", server, "folders", "--root", str(tmp_path / "none"))
    assert code == 2
    assert "--root takes a folder or a file: URI; there is no" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("call it.py", "the following arguments are required: TOOL\n"),
        ("prompt it.py", "the following arguments are required: PROMPT\n"),
        ("list it.py frogs", "KIND: must be one of tools, resources, templates, prompts, not 'frogs'\n"),
        ("ping it.py --timeout 0", "--timeout: must be a number of seconds above 0, not '0'\n"),
        ("ping it.py --timeout nan", "--timeout: must be a number of seconds above 0, not 'nan'\n"),
        ("ping it.py --timeout soon", "--timeout: must be a number of seconds above 0, not 'soon'\n"),
        ("ping it.py --count -1", "--count: must be a whole number of at least 1, not '-1'\n"),
        ("watch it.py --count 0", "--count: must be a whole number of at least 1, not '0'\n"),
        ("lst it.py", "trunkline: there is no command 'lst'. Did you mean \"list\"?\n"),
        ("frogs", "trunkline: there is no command 'frogs'. `trunkline --help` lists the commands.\n"),
    ],
)
def test_wrong_usage_is_explained(capsys: pytest.CaptureFixture[str], words: str, why: str) -> None:
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (2, "")
    assert err.endswith(why)


def test_token_of_standard_input_is_read_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("secret\n"))
    with held_port() as port:  # refuses connections
        code, _, err = run(capsys, "ping", f"http://127.0.0.1:{port}/mcp", "--token", "-")
    assert (code, "--token" in err) == (3, False), err
