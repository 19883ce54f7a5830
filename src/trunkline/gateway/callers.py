"""Authentication of the callers of a gateway, as its configuration file states it."""

from typing import TYPE_CHECKING

from trunkline.config import secret_variable
from trunkline.errors import ConfigError
from trunkline.gateway.options import CallerOptions

if TYPE_CHECKING:
    from trunkline.auth.server.resource_server import ResourceServer
    from trunkline.auth.server.verifiers import Verifier

__all__ = ["make_auth"]


def make_auth(options: CallerOptions) -> "ResourceServer":
    """Return the resource server of a gateway. Raises `ConfigError` if the options cannot be used."""
    from trunkline.auth.principal import Principal
    from trunkline.auth.server.jwt import Jwt
    from trunkline.auth.server.resource_server import ResourceServer
    from trunkline.auth.server.static_tokens import StaticTokens

    verifiers: list[Verifier] = [] if options.issuer is None else [Jwt(options.issuer)]
    if options.tokens:
        known: dict[str, Principal] = {}
        for subject, variable in options.tokens.items():
            token = secret_variable(variable)
            if token is None:
                raise ConfigError(f"the token of {subject!r} is in the variable {variable}, which is not set")
            if token in known:
                raise ConfigError(f"{subject!r} and {known[token].subject!r} have the same token; choose another one")
            known[token] = Principal(subject, scopes=options.scopes)
        verifiers.append(StaticTokens(known))
    if not verifiers:
        raise ConfigError("`auth` of the configuration needs an `issuer`, or `tokens`")
    return ResourceServer(*verifiers, scopes=options.scopes, public_url=options.public_url)
