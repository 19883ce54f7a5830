"""Authorization: credentials that clients send, and token verification for servers."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline.auth.client.grants import ClientCredentials, EnterpriseManaged, WorkloadIdentity
    from trunkline.auth.client.interaction import Interaction, Redirected, Waiting
    from trunkline.auth.client.loopback import LoopbackBrowser
    from trunkline.auth.client.oauth import OAuth
    from trunkline.auth.client.terminal_login import Headless
    from trunkline.auth.client.token_store import FileTokens, MemoryTokens, TokenStore
    from trunkline.auth.jose import SigningKey
    from trunkline.auth.principal import Principal
    from trunkline.auth.server.introspection import Introspection
    from trunkline.auth.server.jwt import Jwt
    from trunkline.auth.server.resource_server import ResourceServer
    from trunkline.auth.server.static_tokens import StaticTokens
    from trunkline.auth.server.verifiers import BadToken, IssuerLimits, Verified, Verifier

__all__ = [
    "BadToken",
    "ClientCredentials",
    "EnterpriseManaged",
    "FileTokens",
    "Headless",
    "Interaction",
    "Introspection",
    "IssuerLimits",
    "Jwt",
    "LoopbackBrowser",
    "MemoryTokens",
    "OAuth",
    "Principal",
    "Redirected",
    "ResourceServer",
    "SigningKey",
    "StaticTokens",
    "TokenStore",
    "Verified",
    "Verifier",
    "Waiting",
    "WorkloadIdentity",
]

_HOMES: Final = {
    "client.grants": ("ClientCredentials", "EnterpriseManaged", "WorkloadIdentity"),
    "client.terminal_login": ("Headless",),
    "client.interaction": ("Interaction", "Redirected", "Waiting"),
    "client.loopback": ("LoopbackBrowser",),
    "client.oauth": ("OAuth",),
    "client.token_store": ("FileTokens", "MemoryTokens", "TokenStore"),
    "jose": ("SigningKey",),
    "principal": ("Principal",),
    "server.resource_server": ("ResourceServer",),
    "server.introspection": ("Introspection",),
    "server.jwt": ("Jwt",),
    "server.static_tokens": ("StaticTokens",),
    "server.verifiers": ("BadToken", "IssuerLimits", "Verified", "Verifier"),
}
_HOME: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a server does not load client code, nor a client server code."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
