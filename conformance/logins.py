"""Who the client is in each scenario about authorization, and how it gets there without a browser."""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import aiohttp

from trunkline.auth import (
    ClientCredentials,
    EnterpriseManaged,
    MemoryTokens,
    OAuth,
    Redirected,
    SigningKey,
    WorkloadIdentity,
)

__all__ = ["LOGINS"]

CALLBACK: Final = "http://127.0.0.1:33418/callback"
DOCUMENT: Final = "https://conformance-test.local/client-metadata.json"


async def agree(page: str) -> str:
    """What a person does who has agreed long ago: the page sends them back at once."""
    async with aiohttp.ClientSession() as session, session.get(page, allow_redirects=False) as answer:
        return answer.headers["Location"]


log_in = partial(OAuth, interaction=Redirected(CALLBACK, agree), client_metadata_url=DOCUMENT)


def told() -> dict[str, Any]:
    """What the suite says about who we are."""
    return json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])


def person() -> OAuth:
    """Somebody at a browser."""
    return log_in(store=MemoryTokens())


def known_person() -> OAuth:
    """The same, with a program that is registered already."""
    return log_in(store=MemoryTokens(), client_id=told()["client_id"], client_secret=told()["client_secret"])


def program() -> ClientCredentials:
    """A program with a secret."""
    return ClientCredentials(told()["client_id"], secret=told()["client_secret"])


def program_with_key() -> ClientCredentials:
    """A program with a key."""
    key = SigningKey.from_pem(told()["private_key_pem"], told()["signing_algorithm"])
    return ClientCredentials(told()["client_id"], key=key)


def employee() -> EnterpriseManaged:
    """Somebody whose company decides."""
    given = told()
    return EnterpriseManaged(
        given["client_id"],
        secret=given["client_secret"],
        id_token=given["idp_id_token"],
        idp=given["idp_issuer"],
        idp_token_endpoint=given["idp_token_endpoint"],
        idp_client_id=given["idp_client_id"],
    )


def workload() -> WorkloadIdentity:
    """A program whose platform says who it is."""
    return WorkloadIdentity(told()["valid_jwt"], client_id=told()["client_id"])


_PERSONS: Final = (
    *(f"metadata-{name}" for name in ("default", "var1", "var2", "var3", "issuer-mismatch")),
    "basic-cimd",
    *(f"scope-{name}" for name in ("from-www-authenticate", "from-scopes-supported", "omitted-when-undefined")),
    *(f"scope-{name}" for name in ("step-up", "retry-limit")),
    *(f"token-endpoint-auth-{name}" for name in ("basic", "post", "none")),
    *(f"iss-{name}" for name in ("supported", "not-advertised", "supported-missing", "wrong-issuer", "unexpected")),
    "iss-normalized",
    "resource-mismatch",
    "offline-access-scope",
    "offline-access-not-supported",
    "authorization-server-migration",
    "2025-03-26-oauth-metadata-backcompat",
    "2025-03-26-oauth-endpoint-fallback",
    "dpop",
    "dpop-nonce",
)

LOGINS: Final[Mapping[str, Callable[[], Any]]] = {
    **{f"auth/{name}": person for name in _PERSONS},
    "auth/pre-registration": known_person,
    "auth/client-credentials-basic": program,
    "auth/client-credentials-jwt": program_with_key,
    "auth/enterprise-managed-authorization": employee,
    "auth/cross-app-access-complete-flow": employee,
    "auth/wif-jwt-bearer": workload,
}
