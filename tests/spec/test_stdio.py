"""stdio: a server in a child process, driven through its pipes. All tests here use real processes."""

import asyncio
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.limits import soon
from tests.processes import PATIENCE, StdioPeer, eventually, gone

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'

HELLO = """
from trunkline import Server

server = Server("hello")

@server.tool
def echo(text: str) -> str:
    return text

server.run()
"""

CHATTER = """
import ctypes, os, subprocess, sys
from trunkline import Server

server = Server("chatter")
libc = ctypes.CDLL(None)

@server.tool
async def by_print() -> str:
    print("noise from print")
    sys.stdout.write("noise without a line end")
    return "printed"

@server.tool
async def by_descriptor() -> str:
    os.write(1, b"noise from write\\n")
    return "wrote"

@server.tool
def by_library() -> str:
    libc.printf(b"noise from printf\\n")
    libc.fflush(None)
    libc.puts(b"noise that lies in a buffer until the process ends")
    return "put"

@server.tool
def by_child() -> str:
    subprocess.run(["echo", "noise from a child"], check=True)
    return "spawned"

server.run()
print("said after serving")
"""

WORKER = """
import asyncio, threading, time
from trunkline import Context, Server, Settings

server = Server("worker", settings=Settings.load())

@server.tool
async def steps(ctx: Context) -> str:
    await ctx.info("started")
    await asyncio.sleep(0.3)
    return "finished"

@server.tool
def steps_on_thread(ctx: Context) -> str:
    ctx.info("started")
    time.sleep(0.3)
    return "finished"

@server.tool
async def forever(ctx: Context) -> str:
    await ctx.info("started")
    await asyncio.Event().wait()
    return "never"

@server.tool
def forever_on_thread(ctx: Context) -> str:
    ctx.info("started")
    threading.Event().wait()
    return "never"

server.run()
"""

SMALL = """
from trunkline import Server, Settings

server = Server("small", settings=Settings(stdio_message_size_limit=1024, drain_timeout=0.5))
server.add_resource("big://text", "x" * 300_000)
server.run()
"""


# --- one message per line, and nothing else ------------------------------------------------------------


@pytest.mark.row("STD-02", "W02", "W12")
def test_several_lines_in_one_read_are_answered() -> None:
    with StdioPeer(HELLO) as peer:
        peer.initialize()
        calls = [{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in (11, 12, 13)]
        peer.send(
            b"".join(
                json.dumps(call).encode() + end for call, end in zip(calls, (b"\n", b"\r\n", b"\n\n"), strict=True)
            )
        )
        assert [peer.receive()["id"] for _ in calls] == [11, 12, 13]


@pytest.mark.row("W11")
def test_message_may_arrive_byte_by_byte() -> None:
    with StdioPeer(HELLO) as peer:
        for byte in PING:
            peer.send(bytes([byte]))
        peer.transcript.frames.append(("client", PING))
        assert peer.receive() == {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.mark.row("STD-03", "W02")
def test_prints_go_to_stderr_and_never_to_the_peer() -> None:
    with StdioPeer(CHATTER) as peer:
        peer.initialize()
        for tool in ("by_print", "by_descriptor", "by_library", "by_child"):
            assert peer.result("tools/call", {"name": tool})["isError"] is False
        peer.close_input()
        assert peer.exit_code() == 0  # which reads all of standard output: a line that is no message fails
        said = peer.stderr()
    for way in ("print", "write", "printf", "a child"):
        assert f"noise from {way}\n" in said
    assert "noise without a line end" in said
    assert "noise that lies in a buffer" in said
    assert "said after serving" in said


READER = """
import os, subprocess, sys
from trunkline import Server

server = Server("reader")

@server.tool
def read() -> list[str]:
    child = subprocess.run(["cat"], capture_output=True, check=True).stdout.decode()
    return [sys.stdin.read(), os.read(0, 100).decode(), child]

server.run()
"""


@pytest.mark.row("STD-04")
def test_handler_reading_stdin_gets_eof() -> None:
    with StdioPeer(READER) as peer:
        peer.initialize()
        peer.call("tools/call", {"name": "read"})
        peer.call("ping")
        answers = {message["id"]: message for message in (peer.receive(), peer.receive())}
        assert answers[2]["result"]["structuredContent"] == {"result": ["", "", ""]}
        assert answers[3]["result"] == {}


@pytest.mark.row("STD-02", "X24")
def test_content_length_framing_is_adopted() -> None:
    with StdioPeer(HELLO, framing="headers") as peer:
        assert peer.initialize()["serverInfo"]["name"] == "hello"
        assert (
            peer.result("tools/call", {"name": "echo", "arguments": {"text": "é 🙂"}})["content"][0]["text"] == "é 🙂"
        )
        assert peer.request("no/such")["error"]["code"] == -32601


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "cp1252"},
        {"PYTHONIOENCODING": "cp932"},
    ],
    ids=["C", "cp1252", "cp932"],
)
def test_messages_are_utf8_lines_in_any_locale(env: dict[str, str]) -> None:
    with StdioPeer(HELLO, env=env) as peer:
        peer.initialize()
        text = "čaj, 日本語, 🙂, \u2028"
        assert peer.result("tools/call", {"name": "echo", "arguments": {"text": text}})["content"][0]["text"] == text
        assert text.encode() in peer.transcript.frames[-1][1]  # as it is, not escaped
        assert b"\r" not in peer.transcript.frames[-1][1]


# --- limits ----------------------------------------------------------------------------------------------


@pytest.mark.row("W16")
@pytest.mark.parametrize("script_limit", [(HELLO, 16 * 1024 * 1024), (SMALL, 1024)], ids=["default", "1 KiB"])
def test_message_size_limit_is_exact(script_limit: tuple[str, int]) -> None:
    script, limit = script_limit
    frame = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"pad": ""}}).encode()
    fits = frame.replace(b'""', b'"' + b"x" * (limit - len(frame)) + b'"')
    assert len(fits) == limit
    with StdioPeer(script) as peer:
        peer.transcript.frames.append(("client", frame))
        peer.send(fits + b"\n")
        assert peer.receive() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        peer.send(fits.replace(b'"x', b'"xx') + b"\n")
        answer = peer.receive()
        assert answer["id"] == 1
        refusal = answer["error"]
        assert refusal["code"] == -32600
        assert refusal["data"]["kind"] == "message_size_exceeds_maximum"
        assert refusal["data"]["maxSize"] == limit
        assert peer.result("ping") == {}


@pytest.mark.row("W16")
def test_oversized_response_becomes_an_error() -> None:
    with StdioPeer(SMALL) as peer:
        peer.initialize()
        error = peer.request("resources/read", {"uri": "big://text"})["error"]
        assert (error["code"], error["data"]["kind"]) == (-32602, "content_too_large")
        assert error["message"].endswith("is above the limit of 1024 (stdio_message_size_limit)")


CATALOGUE = """
from trunkline import Server, Settings

server = Server("catalog", settings=Settings(unsent_high=1 << 20, unsent_limit=64 << 20))
server.add_resource("big://text", "x" * 300_000)
server.run()
"""


def _read_requests(first: int, number: int) -> bytes:
    wanted = {"jsonrpc": "2.0", "method": "resources/read", "params": {"uri": "big://text"}}
    return b"".join(json.dumps({**wanted, "id": first + n}).encode() + b"\n" for n in range(number))


@pytest.mark.row("N14")
def test_reading_pauses_while_the_peer_does_not_read() -> None:
    with StdioPeer(CATALOGUE) as peer:
        peer.initialize()
        os.set_blocking(peer.input, False)
        requests, sent = _read_requests(100, 40_000), 0
        while select.select([], [peer.input], [], 0.5)[1]:  # until there is no room in its input for half a second
            sent += os.write(peer.input, requests[sent : sent + 4096])
            assert sent < len(requests) // 2, "the server reads on and on"
        used = (
            int(Path(f"/proc/{peer.process.pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
        )
        assert used < 256 << 20
        while not select.select([], [peer.input], [], 0)[1]:  # reading its answers makes it go on
            peer.read()
        peer.process.kill()
        while peer.read():
            pass


@pytest.mark.row("N14")
def test_server_exits_if_the_peer_never_reads() -> None:
    script = CATALOGUE.replace("64 << 20", "2 << 20")
    with StdioPeer(script) as peer:
        peer.initialize()
        peer.send(_read_requests(100, 60))  # 18 MB of answers, none of which is read
        assert peer.process.wait(PATIENCE) == 0
        while peer.read():
            pass


# --- shutdown --------------------------------------------------------------------------------------------


Ending = Callable[[StdioPeer], None]
ENDINGS = [
    pytest.param(lambda peer: peer.close_input(), id="end of input"),
    pytest.param(lambda peer: peer.kill(signal.SIGINT), id="SIGINT"),
    pytest.param(lambda peer: peer.kill(signal.SIGTERM), id="SIGTERM"),
]


@pytest.mark.row("STD-07", "D13")
@pytest.mark.parametrize("end", ENDINGS)
def test_idle_server_exits_with_0(end: Ending) -> None:
    with StdioPeer(HELLO) as peer:
        peer.initialize()
        end(peer)
        assert peer.exit_code() == 0
        assert peer.stderr() == ""


@pytest.mark.row("D12", "D13")
@pytest.mark.parametrize("end", ENDINGS)
def test_requests_in_flight_are_answered_before_exit(end: Ending) -> None:
    with StdioPeer(WORKER) as peer:
        peer.initialize()
        calls = {peer.tool("steps"), peer.tool("steps_on_thread")}
        assert [peer.receive()["params"]["data"] for _ in calls] == ["started", "started"]
        end(peer)
        answers = [peer.receive() for _ in calls]
        assert {answer["id"] for answer in answers} == calls
        assert [answer["result"]["content"][0]["text"] for answer in answers] == ["finished", "finished"]
        assert peer.exit_code() == 0
        assert "Traceback" not in peer.stderr()


@pytest.mark.row("D12")
@pytest.mark.parametrize("end", ENDINGS)
def test_unfinished_calls_are_cancelled_at_the_deadline(end: Ending) -> None:
    with StdioPeer(WORKER, env={"TRUNKLINE_DRAIN_TIMEOUT": "0.2"}) as peer:
        peer.initialize()
        calls = [peer.tool("forever"), peer.tool("forever_on_thread")]
        assert [peer.receive()["params"]["data"] for _ in range(2)] == ["started", "started"]
        end(peer)
        answers = peer.rest()
        assert [answer["id"] for answer in answers] == calls
        assert {answer["error"]["data"]["kind"] for answer in answers} == {"outcome_unknown"}
        assert peer.exit_code() == 82


@pytest.mark.row("D12")
def test_draining_server_refuses_requests_but_answers_pings() -> None:
    with StdioPeer(WORKER, env={"TRUNKLINE_DRAIN_TIMEOUT": "600"}) as peer:
        peer.initialize()
        peer.tool("forever")
        assert peer.receive()["params"]["data"] == "started"
        peer.kill(signal.SIGTERM)
        refusal = eventually(lambda: peer.request("tools/list").get("error"))
        assert refusal["code"] == 1008
        assert peer.result("ping") == {}
        peer.kill(signal.SIGTERM)
        assert peer.exit_code() == 128 + signal.SIGTERM


@pytest.mark.row("D13")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_second_signal_ends_the_server_at_once(number: signal.Signals) -> None:
    with StdioPeer(WORKER, env={"TRUNKLINE_DRAIN_TIMEOUT": "600"}) as peer:
        peer.initialize()
        peer.tool("forever_on_thread")
        assert peer.receive()["params"]["data"] == "started"
        peer.kill(number)
        eventually(lambda: "error" in peer.request("tools/list"))  # it drains
        peer.kill(number)
        assert peer.exit_code() == 128 + number


@pytest.mark.row("D12")
@pytest.mark.parametrize("end", ENDINGS)
def test_unread_output_does_not_block_shutdown(end: Ending) -> None:
    with StdioPeer(SMALL.replace("stdio_message_size_limit=1024, ", "")) as peer:
        peer.initialize()
        peer.send(_read_requests(100, 10))  # their answers are more than a pipe holds
        select.select([peer.output], [], [], PATIENCE)
        end(peer)
        assert peer.process.wait(PATIENCE) == 0
        while peer.read():
            pass


def test_server_exits_when_its_output_is_closed() -> None:
    with StdioPeer(HELLO) as peer:
        peer.initialize()
        peer.process.stdout.close()  # type: ignore[union-attr]
        peer.send(PING)
        assert peer.process.wait(PATIENCE) == 0
        peer._ended = True


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_server_exits_when_its_parent_dies() -> None:
    until_an_orphan_has_ended()


@pytest.mark.long
async def test_server_notices_dead_parent_within_two_seconds() -> None:
    await soon(partial(asyncio.to_thread, until_an_orphan_has_ended), 2.0)


def until_an_orphan_has_ended() -> float:
    """Return how long a server lives after its parent was killed."""
    ours, theirs = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, HELLO], stdin=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        os.write(theirs, PING)
        assert parent.stdout.readline() == PONG.decode()
        parent.kill()
        killed = time.monotonic()
        eventually(lambda: gone(server))
        took = time.monotonic() - killed
        os.close(ours)
        os.close(theirs)
    return took


def test_sys_exit_in_a_handler_does_not_end_the_process() -> None:
    script = """
import sys
from trunkline import Server

server = Server("quitter")

@server.tool
def on_thread() -> str:
    sys.exit(3)

@server.tool(thread=False)
def on_loop() -> str:
    sys.exit(3)

@server.tool
async def on_task() -> str:
    sys.exit(3)

server.run()
"""
    with StdioPeer(script) as peer:
        peer.initialize()
        for tool in ("on_thread", "on_loop", "on_task"):
            result = peer.result("tools/call", {"name": tool})
            assert result["isError"] is True
            assert "the log has the details" in result["content"][0]["text"]
        assert peer.result("ping") == {}
        peer.close_input()
        assert peer.exit_code() == 0


# --- unusual descriptors ------------------------------------------------------------------------------------


WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None\n"


def test_server_runs_without_uvloop() -> None:
    with StdioPeer(WITHOUT_UVLOOP + HELLO) as peer:
        peer.initialize()
        assert peer.result("tools/call", {"name": "echo", "arguments": {"text": "x"}})["isError"] is False
        peer.kill(signal.SIGINT)
        assert peer.exit_code() == 0
        assert peer.stderr() == ""


@pytest.mark.parametrize("before", ["", WITHOUT_UVLOOP], ids=["uvloop", "asyncio"])
def test_stdio_may_be_regular_files(tmp_path: Path, before: str) -> None:
    said, answers = tmp_path / "in", tmp_path / "out"
    call = {"name": "echo", "arguments": {"text": "on file"}}
    initialize = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "file", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        *({"jsonrpc": "2.0", "id": n, "method": "ping", "params": {"pad": "x" * 1000}} for n in range(3, 1000)),
    ]
    said.write_text("".join(json.dumps(message) + "\n" for message in messages), encoding="utf-8")
    with said.open() as stdin, answers.open("w") as stdout:
        ended = subprocess.run(
            [sys.executable, "-c", before + HELLO], stdin=stdin, stdout=stdout, timeout=PATIENCE, check=False
        )
    assert ended.returncode == 0
    found = {answer["id"]: answer["result"] for answer in map(json.loads, answers.read_text().splitlines())}
    assert found[2]["content"] == [{"type": "text", "text": "on file"}]
    assert found.keys() == set(range(1, 1000))


def test_full_disk_ends_the_server() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", HELLO],
            input=PING,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    assert ended.returncode == 0
    assert b"Traceback" not in ended.stderr


def test_terminal_shows_help_and_ctrl_d_exits() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", HELLO], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as server:
        assert server.stderr is not None
        assert server.stdout is not None
        said = b"".join(server.stderr.readline() for _ in range(5)).decode()
        assert "hello is an MCP server" in said
        assert PING.decode().strip() in said
        os.write(ours, PING)
        assert server.stdout.readline() == PONG
        os.write(ours, b"\x04")
        assert server.wait(PATIENCE) == 0
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("key", [b"\x04", b"\x03"], ids=["Ctrl+D", "Ctrl+C"])
def test_terminal_settings_are_restored(key: bytes) -> None:
    ours, theirs = pty.openpty()
    terminal = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{HELLO}"
    with subprocess.Popen(
        [sys.executable, "-c", terminal], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as server:
        seen = b""
        while b"Ctrl+C or Ctrl+D ends it" not in seen:
            seen += os.read(ours, 1000)
        os.write(ours, PING)
        while b'"result":{}' not in seen:
            seen += os.read(ours, 1000)
        assert not os.get_blocking(theirs)
        os.write(ours, key)
        assert server.wait(PATIENCE) == 0
    assert os.get_blocking(theirs)
    os.close(ours)
    os.close(theirs)


def test_ctrl_c_on_a_terminal_exits_with_0() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{HELLO}"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    ) as server:
        assert server.stdout is not None
        os.write(ours, PING)
        assert server.stdout.readline() == PONG
        os.write(ours, b"\x03")
        assert server.wait(PATIENCE) == 0
        assert b"Traceback" not in server.stderr.read()  # type: ignore[union-attr]
    os.close(ours)
    os.close(theirs)


@pytest.mark.row("D13")
def test_client_requests_fail_at_once_after_eof() -> None:
    with StdioPeer(ASKER) as peer:
        peer.initialize(capabilities={"sampling": {}})
        call = peer.tool("ask")
        assert peer.receive()["method"] == "sampling/createMessage"
        peer.close_input()
        answer = peer.receive()
        assert answer["id"] == call
        assert "closed" in answer["result"]["content"][0]["text"]
        assert peer.exit_code() == 0


ASKER = """
from trunkline import Context, Server
from trunkline.errors import ConnectionClosed

server = Server("asker")


@server.tool
async def ask(ctx: Context) -> str:
    try:
        return (await ctx.sample("x")).model
    except ConnectionClosed as error:
        return str(error)


server.run()
"""
