"""Logins of third-party clients to our server, and of our client to a third-party server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import official
from tests.authorization.notes_server import INTROSPECTOR, REVISIONS, notes, oauth, serving
from tests.authorization.provider import BrowserUser, Provider, run
from tests.interop.server_processes import served

from trunkline import Client
from trunkline.auth import Introspection, Jwt

HERE = Path(__file__).parent
PYTHON = official.ROOT / ".peers/mcp/bin/python"
PYTHON_CLIENT = [PYTHON, HERE / "peers/mcp_login.py"]
TYPESCRIPT_CLIENT = [official.NODE, HERE / "peers/ts_login.mjs", official.NPM_FOLDER]


async def called(*command: str | Path) -> list[tuple[str, int]]:
    """The result of each call of a peer, and the number of pages opened by then."""
    said: list[list[Any]] = json.loads(await run(*command))
    return [(text.partition(" by ")[0], opened) for text, opened in said]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_official_python_client_logs_in_and_steps_up(mode: str, url: str) -> None:
    said = await called(*PYTHON_CLIENT, url, mode, "whoami", "write", "whoami")

    assert said == [("ada", 1), ("written", 2), ("ada", 2)]


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_official_typescript_client_logs_in_and_steps_up(revision: str, url: str) -> None:
    said = await called(*TYPESCRIPT_CLIENT, url, revision, "whoami", "write", "whoami")

    assert said == [("ada", 1), ("written", 2), ("ada", 2)]


@pytest.mark.parametrize("nonces", [False, True], ids=["plain", "nonces"])
async def test_official_typescript_client_uses_dpop(nonces: bool, provider: Provider) -> None:
    provider.set(nonces=nonces)
    server = notes(Jwt(provider.issuer), dpop=True, dpop_nonces=nonces)
    async with serving(server) as url:
        said = await called(*TYPESCRIPT_CLIENT, url, "2026-07-28", "--dpop", "whoami", "whoami")

    assert said == [("ada", 1), ("ada", 1)]


async def test_official_python_client_works_with_introspection(provider: Provider) -> None:
    async with serving(notes(Introspection(provider.issuer, **INTROSPECTOR)), "/opaque/mcp") as url:
        said = await called(*PYTHON_CLIENT, url, "2026-07-28", "whoami")

    assert said == [("ada", 1)]


@pytest.fixture
def guarded(provider: Provider) -> Iterator[str]:
    """A server of the official Python SDK."""
    with served([PYTHON, HERE / "peers/mcp_guarded.py", provider.issuer]) as server:
        yield f"http://{server.place()}/opaque/mcp"


async def test_client_logs_in_to_official_python_server(guarded: str, provider: Provider, user: BrowserUser) -> None:
    auth = oauth(user)
    for revision in REVISIONS:
        async with Client(guarded, auth=auth, revision=revision) as client:
            assert (await client.call_tool("whoami")).text == "ada"
            assert client.revision == revision

    assert len(user.opened) == 1
    assert len(provider.take_requests("/token", grant_type="authorization_code", status=200)) == 1
