"""Our client against servers from PyPI and npm, and client libraries from there against our server.

packages.toml names them, with their catalogs and known answers; none of them needs a network. `make test` runs those
that are marked quick there, `make test-long` all of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.interop.host import PATIENT, Host
from tests.interop.packages import SCRIPTS, ClientEntry, Environment, ServerEntry, clients, servers
from tests.interop.server_processes import served
from tests.limits import PATIENCE
from tests.ports import held_port
from tests.sharing import computed_once

from trunkline import BlockingClient
from trunkline.errors import PeerError
from trunkline.transports.channel import Connector
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.stdio.client import Command
from trunkline.wire import codec

HERE = Path(__file__).parent
PEERS = HERE / "peers"
OUR_SERVER = [sys.executable, str(HERE / "everything.py")]
PAGE = b"<html><head><title>Fish</title></head><body><h1>Fish</h1><p>The <b>trout</b> swims.</p></body></html>"
LISTS = {
    "tools": ("tools/list", "tools"),
    "resources": ("resources/list", "resources"),
    "resource_templates": ("resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts/list", "prompts"),
}
"""The lists: the client's method name, the protocol method, and the member of its result."""

EXPECTED = {"sum": "5", "resource": "static text", "prompt": "Say hello to Ada."}
"""The output of a client script that has called `add` with 2 and 3, read test://static and rendered `greet`."""

UNKNOWN_METHOD = -1
"""Stands for the number of templates of a server that has resources, and answers that it cannot list templates: to our
client it has none."""

NEWEST_OVER_SSE = "2025-11-25"
"""HTTP+SSE has a handshake, as have all revisions up to this one."""

NOT_WAITING = msgspec.structs.replace(PATIENT, probe_timeout=1.0)
"""Settings for servers that never answer server/discover: if they are slow to start, the result is the same."""

MOST = 4 * PATIENCE
"""Seconds for a client script: large libraries take many seconds to import on a busy machine."""


def rows(entries: tuple[Any, ...], transports: str) -> list[Any]:
    """One test for each entry of the table and transport that it has."""
    return [
        pytest.param(entry, transport, id=f"{entry.name}-{transport}", marks=() if entry.quick else pytest.mark.long)
        for entry in entries
        for transport in getattr(entry, transports)
    ]


# --- servers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "transport"), rows(servers(), "commands"))
async def test_client_lists_and_calls_everything_a_server_declares(
    entry: ServerEntry, transport: str, tmp_path: Path, site: str
) -> None:
    with started(entry, transport, {"folder": str(tmp_path), "site": site}) as (connector, fill):
        async with Host(connector, settings=NOT_WAITING if entry.silent else PATIENT) as host:
            assert host.client.revision == revision_over(transport, entry)
            await compare_lists(host, entry)
            for call in entry.calls:
                assert fill(call["text"]) in await answer(host, call["tool"], fill(call.get("arguments", {})))
            for uri, text in fill(entry.reads).items():
                [content] = await host.client.read_resource(uri)
                assert text in (content.text or content.mime_type)
            for get in entry.gets:
                prompt = await host.client.get_prompt(get["prompt"], fill(get.get("arguments", {})))
                assert fill(get["text"]) in "".join(message.content.text for message in prompt.messages)


def revision_over(transport: str, entry: ServerEntry) -> str:
    """The revision that a server is known to negotiate."""
    revision = entry.revision_over.get(transport, entry.revision)
    return min(revision, NEWEST_OVER_SSE) if transport == "sse" else revision


async def answer(host: Host, tool: str, arguments: dict[str, Any]) -> str:
    """The text result of a tool, or its error."""
    try:
        return (await host.client.call_tool(tool, arguments)).text
    except PeerError as error:
        return f"error: {error}"


async def compare_lists(host: Host, entry: ServerEntry) -> None:
    """Assert that each list is complete, and that no member of its items is lost on the way through our types."""
    for kind, (method, member) in LISTS.items():
        if method.partition("/")[0] not in host.client.capabilities:
            assert getattr(entry, kind) == 0, f"the server does not declare {kind}"
        elif getattr(entry, kind) == UNKNOWN_METHOD:
            assert [item async for item in getattr(host.client, kind)()] == []
        else:
            items = [item async for item in getattr(host.client, kind)()]
            assert len(items) == getattr(entry, kind), [item.name for item in items]
            for item, sent in zip(items, sent_items(host, method, member), strict=True):
                assert json.loads(codec.to_json(item)) == known_members(type(item), sent)


def sent_items(host: Host, method: str, member: str) -> Iterator[dict[str, Any]]:
    """The items of a list as the server sent them, page by page."""
    for request in host.sent(method):
        for message in host.answers_to(request["id"], by="server"):
            yield from message["result"][member]


def known_members(kind: type, item: dict[str, Any]) -> dict[str, Any]:
    """The members of the specification, without null: some servers send null for absent members."""
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    return {name: value for name, value in item.items() if name in names and value is not None}


@contextmanager
def started(entry: ServerEntry, transport: str, values: Mapping[str, str]) -> Iterator[tuple[Connector, Any]]:
    """A server of the table, in a process: its connector, and the values of this test."""
    complete(entry.environment)
    with held_port() as port:
        known = {**values, "port": str(port), "programs": str(entry.environment.programs), "peers": str(PEERS)}

        def fill(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {fill(key): fill(one) for key, one in value.items()}
            if isinstance(value, list):
                return [fill(one) for one in value]
            return (
                re.sub(r"\{(\w+)\}", lambda name: known.get(name[1], name[0]), value)
                if isinstance(value, str)
                else value
            )

        for name, content in entry.files.items():
            file = Path(known["folder"]) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(fill(content), "utf-8")
        if entry.script is not None:
            beside_packages(Path(known["folder"]), entry.environment, entry.script)
        env = {"PATH": search_path(entry.environment), "HOME": known["folder"], **fill(entry.env)}
        command = fill(entry.commands[transport])
        if transport == "stdio":
            yield Command(command, env=env, cwd=known["folder"]), fill
            return
        with served(["env", "-C", known["folder"], *command], env) as server:
            server.place()
            path = entry.path if transport == "http" else entry.sse_path
            yield HttpConnector(f"http://127.0.0.1:{port}{path}"), fill


def beside_packages(folder: Path, environment: Environment, *scripts: str) -> None:
    """Put scripts into a folder with the packages of an environment, where node resolves imports."""
    (folder / "node_modules").symlink_to(environment.folder / "node_modules")
    for script in scripts:
        shutil.copy(PEERS / script, folder)


def search_path(environment: Environment) -> str:
    """The search path for programs: the environment first, then ours, which has node."""
    return os.pathsep.join([str(environment.programs), str(SCRIPTS), os.environ["PATH"]])


def complete(environment: Environment) -> None:
    assert environment.complete, (
        f"{environment.name} is not installed: `python -m tests.interop.packages {environment.name}` does that"
    )


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a web server with one page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# --- clients -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "transport"), rows(clients(), "transports"))
def test_library_lists_and_calls_everything_our_server_offers(
    entry: ClientEntry, transport: str, shared_folder: Path, tmp_path: Path
) -> None:
    if transport == "stdio":
        outcome = run_client(entry, OUR_SERVER, tmp_path)
    else:
        with served([*OUR_SERVER, "http"]) as server:
            outcome = run_client(entry, [f"http://{server.place()}/{'sse' if transport == 'sse' else 'mcp'}"], tmp_path)
            assert server.end() == 0, server.said
    assert outcome.keys() == {"tools", "sum", *entry.can}
    assert sorted(outcome.pop("tools")) == computed_once(shared_folder, "tools-of-everything", our_tools)
    assert outcome == {key: EXPECTED[key] for key in outcome}


def run_client(entry: ClientEntry, server: list[str], folder: Path) -> dict[str, Any]:
    """The last line that the script of a library prints after using a server: a command, or an address."""
    complete(entry.environment)
    env = {"PATH": search_path(entry.environment), "HOME": str(folder), **entry.env}
    command = ["python", str(PEERS / entry.script)]
    if entry.script.endswith(".mjs"):
        beside_packages(folder, entry.environment, entry.script, "client_script.mjs")
        command = ["node", entry.script]
    command = ["env", *command, *server]  # which looks up programs in its PATH
    ended = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=MOST, check=False)
    assert ended.returncode == 0, f"exit status {ended.returncode}: {ended.stdout[-2000:]}\n{ended.stderr[-5000:]}"
    return json.loads(ended.stdout.splitlines()[-1])


def our_tools() -> list[str]:
    """The names of the tools that our server offers, sorted."""
    with BlockingClient(OUR_SERVER) as client:
        return sorted(tool.name for tool in client.tools())


# --- the table ---------------------------------------------------------------------------------


def test_every_package_has_an_exact_version() -> None:
    for environment in (entry.environment for entry in (*servers(), *clients())):
        assert all(re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.]+", pin) for pin in environment.pypi), environment
        assert all(re.fullmatch(r"(@[\w-]+/)?[\w.-]+@\d[\w.-]*", pin) for pin in environment.npm), environment
        assert sum(map(bool, (environment.pypi, environment.npm, environment.shared))) == 1, environment


def test_every_call_has_a_known_answer() -> None:
    for entry in servers():
        assert all(call["text"] for call in entry.calls), entry.name
        assert entry.calls or not entry.tools, entry.name
