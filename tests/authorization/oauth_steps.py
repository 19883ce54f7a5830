"""The steps of an OAuth login, one function each, so that a test can replace any of them."""

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
from tests.authorization.provider import BrowserUser, Provider

RESOURCE = "http://127.0.0.1:1/mcp"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


async def logged_in(provider: Provider, person: BrowserUser, resource: str = RESOURCE, **asked: str) -> dict[str, str]:
    """The query of the redirect after a login."""
    query = {
        "client_id": "desk",
        "response_type": "code",
        "redirect_uri": person.redirect_uri,
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
        "scope": "notes:read offline_access",
        "prompt": "consent",
        "resource": resource,
        "state": "s",
        **asked,
    }
    url = await person(f"{provider.issuer}/auth?{urlencode(query)}")
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def posted(provider: Provider, **form: str) -> dict[str, Any]:
    """The response of the token endpoint to a public client."""
    form = {"client_id": "desk", "redirect_uri": "http://127.0.0.1/callback", "resource": RESOURCE, **form}
    async with aiohttp.ClientSession() as session, session.post(f"{provider.issuer}/token", data=form) as answer:
        return await answer.json()


async def exchanged(provider: Provider, back: dict[str, str], **more: str) -> dict[str, Any]:
    """The tokens for an authorization code."""
    form = {"grant_type": "authorization_code", "code": back["code"], "code_verifier": VERIFIER, **more}
    return await posted(provider, **form)


async def registered(provider: Provider, **metadata: Any) -> str:
    """The id of a newly registered client."""
    async with aiohttp.ClientSession() as session, session.post(f"{provider.issuer}/reg", json=metadata) as answer:
        return (await answer.json())["client_id"]


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a signed token."""
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
