"""A server of the official Python SDK that introspects every token.

    python mcp_guarded.py ISSUER

It listens on any free port; Streamable HTTP is at /opaque/mcp.
"""

import socket
import sys
from typing import Any

import httpx2
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer

ISSUER = sys.argv[1]
PATH = "/opaque/mcp"


class Asking:
    """Verify a token by introspection."""

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx2.AsyncClient(auth=("introspector", "told-to-the-server")) as http:
            answer = await http.post(f"{ISSUER}/token/introspection", data={"token": token})
        said: dict[str, Any] = answer.json()
        if not said["active"]:
            return None
        scopes = said["scope"].split()
        found = {"client_id": said["client_id"], "scopes": scopes, "expires_at": said["exp"], "subject": said["sub"]}
        return AccessToken(token=token, resource=said["aud"], claims={"iss": ISSUER}, **found)


listening = socket.create_server(("127.0.0.1", 0))
auth = AuthSettings.model_validate(
    {
        "issuer_url": ISSUER,
        "resource_server_url": f"http://127.0.0.1:{listening.getsockname()[1]}{PATH}",
        "required_scopes": ["notes:read"],
        "validate_token_resource": True,
    }
)
server = MCPServer("official", token_verifier=Asking(), auth=auth)


@server.tool()
def whoami() -> str:
    """The principal of the call."""
    token = get_access_token()
    return token.subject if token and token.subject else "nobody"


app = server.streamable_http_app(streamable_http_path=PATH)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
