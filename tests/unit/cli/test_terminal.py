"""Commands at a terminal: questions, progress, Ctrl+C and hostile text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.unit.cli.screen import screen_of

from trunkline.cli.catalog import Catalog
from trunkline.cli.main import COMMANDS, main
from trunkline.cli.shell import complete_line
from trunkline.cli.terminal import Terminal
from trunkline.protocol.types import Prompt, PromptArgument, Resource, Tool

SERVER = """
import asyncio
from dataclasses import dataclass
from typing import Literal
from trunkline import Context, Server

server = Server("shop")

@dataclass
class Order:
    item: str
    count: int
    size: Literal["small", "large"] = "small"
    gift: bool = False

@server.tool
async def order(ctx: Context) -> str:
    answer = await ctx.elicit("Your order?", Order)
    return f"{answer}"

@server.tool
async def ask_model(ctx: Context) -> str:
    return (await ctx.sample("Which\\x1b[2J colour?")).text

@server.tool
async def wait(ctx: Context) -> str:
    await ctx.progress(1, 4, "begun")
    await asyncio.sleep(3600)
    return "never"

@server.tool
def hostile() -> str:
    return "a\\x1b[31mred\\x1b]0;owned\\x07\\x9b2J\\rb\\u202eend"
"""


@pytest.fixture
def server(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SERVER)
    return str(tmp_path / "shop.py")


def test_form_is_filled_in_at_the_terminal(server: str) -> None:
    with screen_of("call", server, "order") as screen:
        screen.until("[text]")
        screen.send("tea\n")
        screen.until("[integer]")
        screen.send("many\n")
        screen.until("many is not an integer.")
        screen.send("3\n")
        screen.until("2. large")
        screen.send("2\n")
        screen.until("[y/n, default False]")
        screen.send("\n")
        assert screen.ended() == 0
        assert "item='tea', count=3, size='large', gift=False" in screen.text


def test_end_of_input_declines_a_form(server: str) -> None:
    with screen_of("call", server, "order") as screen:
        screen.until("[text]")
        screen.send("\x04")
        screen.ended()
        assert "Declined" in screen.text or "decline" in screen.text.lower()


def test_person_answers_for_the_model(server: str) -> None:
    with screen_of("call", server, "ask_model") as screen:
        screen.until("assistant:")
        assert "user: Which\\x1b[2J colour?" in screen.text
        screen.send("blue\n")
        assert screen.ended() == 0
        assert screen.text.splitlines()[-1] == "blue"


@pytest.mark.parametrize(("tool", "asked"), [("order", "[text]"), ("ask_model", "assistant:"), ("wait", "25%")])
def test_ctrl_c_leaves_the_terminal_clean(server: str, tool: str, asked: str) -> None:
    with screen_of("call", server, tool) as screen:
        screen.until(asked)
        screen.send("\x03")
        assert screen.ended() == 130
        assert screen.cursor_column == 0
        assert screen.echoes
        assert "Traceback" not in screen.text
        assert "25%" not in screen.text  # the line of progress is gone


def test_text_of_a_server_cannot_control_the_terminal(server: str) -> None:
    with screen_of("call", server, "hostile") as screen:
        assert screen.ended() == 0
        assert screen.text == r"a\x1b[31mred\x1b]0;owned\x07\x9b2J\rb\u202eend"
        assert screen.title == ""
        assert b"\x1b" not in screen.raw


def test_terminal_of_unknown_size_has_80_columns() -> None:
    controller, opened = os.openpty()  # its size is 0 by 0
    with open(opened, "w") as out, open(controller, "rb", buffering=0) as shown:
        terminal = Terminal(out=out)
        terminal.columns([("name", "A description."), ("other", "y" * 100)])
        out.flush()
        assert b"A description.\r\n" in shown.read(1000)


def test_colours_are_for_terminals(server: str) -> None:
    with screen_of("list", server, "tools") as screen:
        assert screen.ended() == 0
        assert b"\x1b[1mTools\x1b[0m" in screen.raw
        assert screen.text.startswith("Tools\n  order(")


def test_shell_calls_tools_and_completes_names(server: str) -> None:
    with screen_of("shell", server) as screen:
        screen.until("shop>")
        screen.send("host\t")
        screen.until("shop> hostile")
        screen.send("\n")
        screen.until("owned")
        screen.send("ask_model\n")
        screen.until("assistant:")
        screen.send("green\n")
        screen.until("\ngreen\n")
        screen.send("wait\n")
        screen.until("25%")
        screen.send("\x03")
        screen.until("cancelled")
        screen.send("ask_model\n")
        screen.until(lambda: screen.text.endswith("assistant:"))  # Ctrl+C ends one command, not all questions
        screen.send("yellow\n")
        screen.until("\nyellow\n")
        screen.send("nothing\n")
        screen.until("there is no command and no tool 'nothing'")
        screen.send("half a line")
        screen.until("shop> half a line")
        screen.send("\x03")
        screen.until(lambda: screen.text.endswith("shop>"))
        screen.send("list tools\n")
        screen.until("order() -> string")
        screen.send("\x04")
        assert screen.ended() == 0
        assert screen.cursor_column == 0
        assert screen.echoes
        assert "Traceback" not in screen.text


def test_shell_reads_commands_from_a_pipe(server: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "trunkline", "shell", server],
        input="hostile --json\n'open\nlist\nhelp\nquit\nhostile\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert said.stdout.splitlines()[0].startswith('{"content":[{"type":"text","text":"a\\u001b[31mred')
    assert all(char.isprintable() or char == "\n" for char in said.stdout)
    assert said.stdout.count('{"content"') == 1
    assert "No closing quotation" in said.stderr


CATALOG = Catalog(
    [Tool(name="add", input_schema={"properties": {"a": {}, "b": {}}}), Tool(name="odd\n", input_schema={})],
    [Resource(uri="docs://readme", name="readme")],
    [],
    [Prompt(name="review", arguments=[PromptArgument(name="style")])],
)


@pytest.mark.parametrize(
    ("line", "text", "found"),
    [
        ("a", "a", ["add"]),
        ("call ", "", ["add"]),
        ("add ", "", ["a=", "b="]),
        ("call add a=1 ", "", ["b="]),
        ("read d", "d", ["docs://readme"]),
        ("prompt ", "", ["review"]),
        ("prompt review s", "s", ["style="]),
        ("list t", "t", ["tools", "templates"]),
        ("other ", "", []),
    ],
)
def test_last_word_is_completed(line: str, text: str, found: list[str]) -> None:
    assert complete_line(line, text, CATALOG) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in script] == []
    assert "timeout" in script
    assert "work-timeout" not in script


def test_bash_accepts_its_completions(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = f'{capsys.readouterr().out}\nCOMP_WORDS=(trunkline ca) COMP_CWORD=1; _trunkline; echo "${{COMPREPLY[@]}}"'
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert said.stdout == "call\n"
