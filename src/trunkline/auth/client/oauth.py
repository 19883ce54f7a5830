"""OAuth login of a user."""

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
    """Login of a user where a server requires it: `Client(url, auth=OAuth())`. It opens a browser once and stores
    the tokens."""

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
        """`client_id`, with its secret or key, is the registration at the authorization server `issuer`;
        `client_metadata_url` is the URL of a client ID metadata document. Without either, the client registers itself
        as `client_name`.

        `scopes` are requested in addition to those that the server demands. `interaction` shows the login page, by
        default in a browser on this machine. `store` holds the tokens, by default in a folder of the user. `dpop` binds
        tokens to a key; None does so where the server requires it. `parameters` are added to the authorization request.
        `assume_pkce` accepts authorization servers that do not advertise PKCE: Entra ID and Amazon Cognito support it
        without saying so.
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
