"""`trunkline doctor`: which step of connecting fails, for targets of every kind."""

import asyncio
import contextlib
import json
import re
import shlex
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.spec.certificates import Pair
from tests.unit.auth.auth_setup import auth_setup
from tests.unit.cli.commands import run

from trunkline import Server
from trunkline.cli.doctor_steps import diagnose
from trunkline.cli.main import build_command_parser
from trunkline.cli.terminal import Terminal
from trunkline.findings import Finding

SERVER = "from trunkline import Server\nserver = Server('s', version='1')\n@server.tool\ndef add(a: int) -> int:\n    return a\nserver.run()\n"


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


async def examine(target: str, *options: str) -> dict[str, Finding]:
    """The findings about a target by their steps; the first of each."""
    parsed = build_command_parser("doctor").parse_args([target, *options])
    found: dict[str, Finding] = {}
    for finding in await diagnose(parsed, Terminal()):
        found.setdefault(finding.hop, finding)
    return found


def verdicts(found: dict[str, Finding]) -> dict[str, str]:
    return {hop: finding.verdict for hop, finding in found.items()}


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(SERVER)
    return str(path)


# --- files and commands --------------------------------------------------------------------------


async def test_healthy_file(server: str) -> None:
    found = await examine(server)
    assert verdicts(found) == {"import": "ok", "handshake": "ok", "lists": "ok"}
    assert found["handshake"].seen == "s 1, revision 2026-07-28, without a handshake"
    assert found["lists"].seen == "1 tools"


async def test_healthy_command(server: str) -> None:
    found = await examine(f"{sys.executable} {server}", "--revision", "2025-11-25")
    assert set(verdicts(found).values()) == {"ok"}
    assert [*found] == ["target", "command", "environment", "start", "handshake", "lists"]
    assert found["handshake"].seen == "s 1, revision 2025-11-25, by a handshake"


async def test_file_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("1 / 0")
    found = await examine(str(tmp_path / "it.py"))
    assert verdicts(found) == {"import": "failed", "handshake": "skipped", "lists": "skipped"}
    assert "ZeroDivisionError" in found["import"].seen


async def test_script_without_a_server_is_started(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import sys\nif __name__ == '__main__':\n    sys.exit('no API key')")
    found = await examine(str(tmp_path / "other.py"))
    assert found["start"].verdict == "failed"
    assert found["start"].seen.endswith("its standard error ends with 'no API key'")
    assert "--env" in found["start"].mend


async def test_missing_program() -> None:
    found = await examine("no-such-program --flag")
    assert verdicts(found) == {
        "target": "ok", "command": "failed", "start": "skipped", "handshake": "skipped", "lists": "skipped",
    }  # fmt: skip
    assert found["command"].seen == "the program 'no-such-program' is not on PATH"


async def test_program_that_is_not_executable(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("")
    found = await examine(str(tmp_path / "program"))
    assert found["command"].mend == "make it executable: chmod +x"


async def test_missing_script_is_named(tmp_path: Path) -> None:
    parsed = build_command_parser("doctor").parse_args([f"{sys.executable} no-such-file.py"])
    warning, failed = [one for one in await diagnose(parsed, Terminal()) if one.verdict in {"warning", "failed"}]
    assert (warning.hop, failed.hop) == ("command", "start")
    assert warning.seen.startswith("there is no file 'no-such-file.py' in /")
    assert failed.mend == "check the paths in the command and in its arguments"


async def test_process_that_exits() -> None:
    found = await examine(python("import no_such_module"))
    assert found["start"].verdict == "failed"
    assert "exited with status 1" in found["start"].seen
    assert found["start"].mend == "install the missing module for the Python that the command starts"


async def test_text_before_the_protocol_is_a_warning(server: str) -> None:
    code = f"print('Starting\\x1b[31m', flush=True)\nimport runpy, os\nos.execv({sys.executable!r}, [{sys.executable!r}, {server!r}])"
    found = await examine(python(code))
    assert found["output"].verdict == "warning"
    assert "Starting" in found["output"].seen
    assert "sys.stderr" in found["output"].mend
    assert verdicts(found)["lists"] == "ok"


REFUSING = """
import json, sys
print("hello", flush=True)
for line in sys.stdin:
    answer = {"jsonrpc": "2.0", "id": json.loads(line).get("id"), "error": {"code": -32601, "message": "no"}}
    print(json.dumps(answer), flush=True)
"""


async def test_text_before_a_failed_handshake_fails() -> None:
    found = await examine(python(REFUSING))
    assert (found["start"].verdict, found["output"].verdict, found["handshake"].verdict) == ("ok", "failed", "failed")
    assert "'hello'" in found["output"].seen


async def test_silent_process_is_no_server_for_stdio() -> None:
    found = await examine(python("import time; time.sleep(600)"), "--timeout", "0.5")
    assert (found["start"].verdict, found["handshake"].verdict) == ("ok", "failed")
    assert "server for stdio" in found["handshake"].mend


# --- configuration files -------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, server: str) -> str:
    entries = {
        "good": {"command": sys.executable, "args": [server]},
        "variable": {"command": sys.executable, "env": {"KEY": "${NO_SUCH_VARIABLE_HERE}"}},
        "disabled": {"command": sys.executable, "args": [server], "disabled": True, "env": {"KEY": ""}},
        "folder": {"command": sys.executable, "args": [server], "cwd": "/no/such/folder"},
        "path": {"command": "python-no-such", "env": {"PATH": "/nowhere"}},
        "shell": {"command": "sh", "env": {"PATH": "/nowhere"}},
    }
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return str(path)


async def test_entry_of_a_configuration(config: str) -> None:
    found = await examine(f"{config}:good")
    assert set(verdicts(found).values()) == {"ok"}
    assert found["target"].seen == f"the entry 'good' of {config}, a command"


@pytest.mark.parametrize(
    ("name", "step", "seen"),
    [
        ("variable", "environment", "NO_SUCH_VARIABLE_HERE"),
        ("folder", "command", "there is no folder '/no/such/folder'"),
        ("path", "command", "the program 'python-no-such' is not on PATH"),
        ("shell", "command", "'sh' is not on the PATH of the command"),
        ("none", "target", "has no 'none'"),
    ],
)
async def test_entry_that_cannot_start(config: str, name: str, step: str, seen: str) -> None:
    found = await examine(f"{config}:{name}")
    assert found[step].verdict == "failed"
    assert seen in found[step].seen
    assert found[step].mend


async def test_disabled_entry_and_empty_variable_are_warnings(config: str) -> None:
    parsed = build_command_parser("doctor").parse_args([f"{config}:disabled"])
    found = await diagnose(parsed, Terminal())
    assert [finding.seen for finding in found if finding.verdict == "warning"] == [
        "the entry is disabled, so hosts do not start it",
        "KEY is empty",
    ]
    assert found[-1].verdict == "ok"


# --- addresses -----------------------------------------------------------------------------------


async def test_refused_connection(unused_tcp_port: int) -> None:
    found = await examine(f"http://127.0.0.1:{unused_tcp_port}/mcp")
    assert verdicts(found) == {
        "target": "ok", "dns": "ok", "connect": "failed", "handshake": "skipped", "lists": "skipped",
    }  # fmt: skip


async def test_unknown_host() -> None:
    found = await examine("wss://no.such.host.invalid/mcp")
    assert (found["dns"].verdict, found["tls"].verdict) == ("failed", "skipped")


async def test_invalid_address() -> None:
    assert verdicts(await examine("tcp://127.0.0.1")) == {"target": "failed"}


async def test_missing_socket(tmp_path: Path) -> None:
    assert verdicts(await examine(f"unix://{tmp_path}/none.sock"))["socket"] == "failed"


@pytest.fixture
async def tls_port(tmp_path: Path) -> AsyncIterator[int]:
    Pair("first").write(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    yield listener.sockets[0].getsockname()[1]
    listener.close()


async def test_certificate_of_an_unknown_authority(tls_port: int) -> None:
    found = await examine(f"https://127.0.0.1:{tls_port}/mcp")
    assert (found["connect"].verdict, found["tls"].verdict, found["handshake"].verdict) == ("ok", "failed", "skipped")
    assert "SSL_CERT_FILE" in found["tls"].mend


async def test_trusted_certificate(tls_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    found = await examine(f"tls://127.0.0.1:{tls_port}")
    assert found["tls"].seen.startswith("the certificate expires")  # tomorrow
    assert found["handshake"].verdict == "failed"


async def test_open_http_server() -> None:
    server = Server("web", version="1")

    @server.tool
    def add(a: int) -> int:
        return a

    listener = await server.listen("http://127.0.0.1:0/mcp")
    found = await examine(listener.address)
    await server.aclose()
    assert set(verdicts(found).values()) == {"ok"}
    assert "requires no authorization" in found["authorization server"].seen
    assert found["lists"].seen == "1 tools"


async def test_server_that_requires_a_token() -> None:
    async with auth_setup() as there:
        found = await examine(there.url)
    assert found["authorization server"].verdict == "ok"
    assert found["authorization keys"].verdict == "ok"
    assert found["handshake"].verdict == "failed"
    assert found["handshake"].mend == "sign in with --login, or pass a token with --token"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests with a token, and refuse others without saying where to get one."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", head)
            message = json.loads(await reader.readexactly(int(length[1])) if length else b"{}")
            status, body = "404 Not Found", b""
            if head.startswith("post /mcp ") and "authorization: bearer secret" not in head:
                status = "401 Unauthorized\r\nWWW-Authenticate: Bearer"
            elif head.startswith("post /mcp ") and "id" not in message:
                status = "202 Accepted"
            elif head.startswith("post /mcp "):
                info = {"name": "s", "version": "1"}
                result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
                refusal = {"error": {"code": -32601, "message": "no"}}
                outcome = {"result": result} if message["method"] == "initialize" else refusal
                status, body = "200 OK", json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            )
            writer.write(body)
    writer.close()


async def test_token_that_works_makes_missing_metadata_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "secret")
    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
    refused, accepted = await examine(url), await examine(url, "--token", "NOTES_TOKEN")
    listener.close()
    assert "failed" in {finding.verdict for hop, finding in refused.items() if hop.startswith("authorization")}
    assert refused["handshake"].verdict == "failed"
    assert accepted["handshake"].verdict == "ok"
    assert "failed" not in verdicts(accepted).values()


# --- the command ---------------------------------------------------------------------------------


def test_failed_step_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "no-such-program")
    assert code == 1
    assert "failed   command: the program 'no-such-program' is not on PATH\n         Fix: install it" in out


def test_json_names_the_failed_step(capsys: pytest.CaptureFixture[str], server: str) -> None:
    code, out, _ = run(capsys, "doctor", "no-such-program", "--json")
    report = json.loads(out)
    assert (code, report["failed"], report["findings"][0]["verdict"]) == (1, "command", "ok")
    code, out, _ = run(capsys, "doctor", server, "--json")
    assert (code, json.loads(out)["failed"]) == (0, None)


def test_text_of_a_process_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; sys.stdout.buffer.write(b'\\x1b[2J\\xc2\\x9b\\n'); sys.exit('\\x1b[31m')"
    for more in ((), ("--json",), ("--stderr",)):
        status, out, err = run(capsys, "doctor", python(code), *more)
        assert status == 1
        assert all(line.isprintable() for line in (out + err).split("\n"))
