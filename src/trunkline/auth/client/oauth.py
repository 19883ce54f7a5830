"""OAuth: logging in to a server, as a person."""

import time
from collections.abc import Callable, Iterable, Mapping

from trunkline.auth.client.authorization_code import CodeGrant
from trunkline.auth.client.interaction import Interaction
from trunkline.auth.client.provider import OAuthAuthorizer
from trunkline.auth.client.registration import ClientRegistrar
from trunkline.auth.client.token_store import FileTokens, TokenStore
from trunkline.auth.jose import SigningKey
from trunkline.config import Settings

__all__ = ["OAuth"]


class OAuth(OAuthAuthorizer):
    """Logs in where a server wants it: `Client(url, auth=OAuth())`. A browser is opened once; the tokens are kept."""

    def __init__(
        self,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        client_key: SigningKey | None = None,
        issuer: str | None = None,
        client_metadata_url: str | None = None,
        client_name: str = "Trunkline",
        scopes: str | Iterable[str] | None = None,
        interaction: Interaction | None = None,
        store: TokenStore | None = None,
        dpop: bool | None = None,
        parameters: Mapping[str, str] | None = None,
        assume_pkce: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`client_id`, with its secret or key, is what was registered with the authorization server `issuer`;
        `client_metadata_url` is where a client ID metadata document is; without either the client registers itself,
        as `client_name`. `scopes` are asked for beside what the server wants. `interaction` is how the person gets to
        the login page: by default a browser on this machine. `store` is where tokens are kept: by default in a folder
        of this user's. `dpop` binds tokens to a key; None: where that is required. `parameters` go to the login page.
        `assume_pkce` logs in where an authorization server does not say that it supports PKCE: Entra ID and Amazon
        Cognito do not, though they support it.
        """
        super().__init__(scopes=scopes, store=store or FileTokens(), dpop=dpop, now=now)
        self._registrar = ClientRegistrar(
            client_id=client_id,
            secret=client_secret,
            key=client_key,
            issuer=issuer,
            document=client_metadata_url,
            name=client_name,
        )
        self._issuers = () if issuer is None else (issuer,)
        self._interaction = interaction
        self._parameters = parameters
        self._assume_pkce = assume_pkce

    def _create_grant(self, settings: Settings) -> CodeGrant:
        return CodeGrant(
            self._registrar,
            self._interaction or _default_interaction(settings),
            issuers=self._issuers,
            parameters=self._parameters,
            assume_pkce=self._assume_pkce,
        )


def _default_interaction(settings: Settings) -> Interaction:
    from trunkline.auth.client.loopback import LoopbackBrowser

    return LoopbackBrowser(settings=settings)
