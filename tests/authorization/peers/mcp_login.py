"""The official Python SDK as a client that has to log in: calls tools one after the other.

    python mcp_login.py URL MODE TOOL ...

The mode is `legacy` for the handshake, or a later revision. It prints a line of JSON: the result of each call, and
the number of pages opened by then.
"""

import json
import sys
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from minimal_browser import sent_back

REDIRECT_URI = "http://127.0.0.1:33418/callback"


class Kept:
    """A token store in memory."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Person:
    """Opens pages."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    async def open(self, url: str) -> None:
        self.opened.append(url)

    async def come_back(self) -> AuthorizationCodeResult:
        url = await anyio.to_thread.run_sync(sent_back, self.opened[-1], REDIRECT_URI)
        back = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        return AuthorizationCodeResult(code=back["code"], state=back.get("state"), iss=back.get("iss"))


async def main(url: str, mode: str, *tools: str) -> None:
    """Call the tools; log in when challenged."""
    person = Person()
    metadata = OAuthClientMetadata.model_validate({"client_name": "official", "redirect_uris": [REDIRECT_URI]})
    auth = OAuthClientProvider(url, metadata, Kept(), person.open, person.come_back)
    said: list[tuple[str, int]] = []
    async with (
        httpx2.AsyncClient(auth=auth, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        for tool in tools:
            result = await client.call_tool(tool, {})
            said.append((result.content[0].text, len(person.opened)))
    print(json.dumps(said))


anyio.run(main, *sys.argv[1:])
