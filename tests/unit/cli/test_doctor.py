"""`trunkline auth doctor`, as a process: its output and its exit status."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.limits import PATIENCE
from tests.unit.auth.auth_setup import ENDPOINT, AuthSetup, Page, RecordedRequest, auth_setup
from tests.unit.cli.commands import trunkline

from trunkline.auth.doctor.examine import HOPS

DOCTOR = ("auth", "doctor")


@pytest.fixture
async def there() -> AsyncIterator[AuthSetup]:
    async with auth_setup() as made:
        yield made


async def test_healthy_server_exits_with_0(there: AuthSetup) -> None:
    done = await trunkline(*DOCTOR, there.url)

    assert (done.status, done.err) == (0, "")
    assert [line.split(":")[0] for line in done.out.splitlines()] == [f"ok       {hop}" for hop in HOPS]


async def test_open_server_exits_with_0(there: AuthSetup) -> None:
    there.open()
    done = await trunkline(*DOCTOR, there.url)

    assert (done.status, done.err) == (0, "")
    assert "requires no authorization" in done.out


async def test_broken_server_exits_with_1_and_a_fix(there: AuthSetup) -> None:
    there.resource["resource"] = "https://other.example/mcp"
    done = await trunkline(*DOCTOR, there.url)

    assert (done.status, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[2].startswith("failed   resource-metadata: ")
    assert lines[3] == "         Rule: RFC 9728, section 3.3; MCP authorization, Resource Parameter Implementation"
    assert lines[4].startswith("         Fix: ")
    assert lines[-1].startswith("skipped  keys: ")


async def test_json_is_one_complete_line(there: AuthSetup) -> None:
    there.server["issuer"] = "https://login.example"
    done = await trunkline(*DOCTOR, "--json", f"{there.url}?key=s3cret")

    assert done.status == 1
    found = json.loads(done.out)
    assert done.out.count("\n") == 1
    assert (found["url"], found["failed"]) == (there.url, "authorization-server-metadata")
    (failed,) = [finding for finding in found["findings"] if finding["verdict"] == "failed"]
    assert failed.keys() == {"hop", "verdict", "seen", "clause", "mend"}
    assert failed["clause"] == "RFC 8414, section 3.3"
    assert "s3cret" not in done.out


async def test_json_of_healthy_server_has_no_failure(there: AuthSetup) -> None:
    done = await trunkline(*DOCTOR, "--json", there.url)

    assert (done.status, json.loads(done.out)["failed"]) == (0, None)


async def test_silent_server_times_out(there: AuthSetup) -> None:
    there.silent = True
    done = await trunkline(*DOCTOR, "--timeout", "0.2", there.url)

    assert done.status == 1
    assert "no response within 0.2 s" in done.out


async def test_private_host_can_be_allowed(there: AuthSetup) -> None:
    there.resource["authorization_servers"] = ["https://10.0.0.7"]
    environ = {"HTTPS_PROXY": there.origin, "https_proxy": there.origin, "NO_PROXY": "", "no_proxy": ""}
    refused = await trunkline(*DOCTOR, there.url, environ=environ)
    allowed = await trunkline(*DOCTOR, "--allow", "10.0.0.7", there.url, environ=environ)

    assert "10.0.0.7 is of a private network" in refused.out
    assert "answered 'HTTP/1.1 404" in allowed.out


# --- the token -----------------------------------------------------------------------------------


def only_with(token: str, there: AuthSetup) -> None:
    def answer(asked: RecordedRequest) -> Page:
        known = asked.headers.get("authorization") == f"Bearer {token}"
        return Page(200) if known else Page(401, None, {"WWW-Authenticate": there.challenge})

    there.pages[ENDPOINT] = answer


async def test_token_is_read_from_environment(there: AuthSetup) -> None:
    only_with("t0k3n", there)
    done = await trunkline(*DOCTOR, "--token", "NOTES_TOKEN", there.url, environ={"NOTES_TOKEN": "t0k3n"})

    assert done.status == 0
    assert "ok       retry: it answers 200" in done.out
    assert "t0k3n" not in done.out


async def test_token_is_read_from_standard_input(there: AuthSetup) -> None:
    only_with("t0k3n", there)
    done = await trunkline(*DOCTOR, "--token", "-", there.url, stdin="t0k3n\n")

    assert (done.status, "ok       retry" in done.out) == (0, True)


@pytest.mark.parametrize(("source", "stdin"), [("eyJ0b2tlbg", ""), ("-", ""), ("-", "to ken\n")])
async def test_token_on_command_line_is_refused_and_not_shown(there: AuthSetup, source: str, stdin: str) -> None:
    done = await trunkline(*DOCTOR, "--token", source, there.url, stdin=stdin)

    assert (done.status, done.out) == (2, "")
    assert "environment variable" in done.err
    assert "eyJ0b2tlbg" not in done.err
    assert there.asked == []


# --- untrusted text, and terminals ---------------------------------------------------------------


async def test_server_text_cannot_control_the_terminal(there: AuthSetup) -> None:
    there.resource["resource"] = "https://other.example/\x1b[2J\x9b2J\u202e"
    done = await trunkline(*DOCTOR, there.url)

    assert done.status == 1
    assert done.out.replace("\n", "").isprintable()


async def test_unencodable_characters_are_escaped(there: AuthSetup) -> None:
    there.resource["authorization_servers"] = ["https://\u65e5\u672c.example"]
    done = await trunkline(*DOCTOR, there.url, environ={"PYTHONIOENCODING": "ascii"})

    assert (done.status, done.err) == (1, "")
    assert "\\u65e5" in done.out


def on_a_terminal(*arguments: str, without_rich: bool = False) -> str:
    """The output on a terminal."""
    blocked = "import sys; sys.modules['rich'] = None; " if without_rich else ""
    program = f"{blocked}import sys; from trunkline.cli.main import main; sys.exit(main())"
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=theirs, env=environ)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while data := os.read(ours, 4096):
            seen += data
    os.close(ours)
    assert process.wait(PATIENCE) == 1
    return seen.decode()


def test_rich_terminal_shows_colours() -> None:
    seen = on_a_terminal(*DOCTOR, "http://127.0.0.1:1/mcp")

    assert "\x1b[1;31mfailed" in seen
    assert "cannot be reached" in seen


def test_terminal_without_rich_shows_plain_lines() -> None:
    seen = on_a_terminal(*DOCTOR, "http://127.0.0.1:1/mcp", without_rich=True)

    assert seen.startswith("failed   address: http://127.0.0.1:1/mcp cannot be reached")
    assert "\x1b" not in seen


def test_manual_lists_every_hop() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/auth-doctor.md").read_text("utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == [*HOPS, "retry"]
