"""Proves to one MCP server who we are: gets tokens when they are wanted, renews them before they run out, asks for more
when more is needed, and knows when to stop."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from trunkline.auth.client.challenges import FORBIDDEN, UNAUTHORIZED, Demand, demand_in, token_in
from trunkline.auth.client.dpop import Prover, new_key
from trunkline.auth.client.grant import Errand, Grant, fields_for
from trunkline.auth.client.single_flight import Flight
from trunkline.auth.client.token_endpoint import Identity, Refused, TokenEndpoint
from trunkline.auth.client.token_store import TokenStore
from trunkline.auth.client.tokens import Answer, Kept, key_for, read_answer, read_kept, write_kept
from trunkline.auth.discovery import Found, discover
from trunkline.auth.fetch import Egress
from trunkline.auth.jose import SigningKey
from trunkline.auth.urls import origin_of
from trunkline.errors import AuthorizationFailed, ConfigError, StoreError
from trunkline.transports.http.client.credentials import Asking, Heard

__all__ = ["Engine"]

_FAILED: Final = 400  # and every status from there on
_MARGIN: Final = 60.0  # seconds before the end of a token in which it is renewed: a request may be under way for long
_MOST_GRANTS: Final = 3  # in a row, without a request that succeeds (authorization, "Step-Up Authorization Flow")
_JUST: Final = 300.0  # seconds in which a token was issued just now, and asking for another one is in vain
_OFFLINE: Final = "offline_access"
_FORGOTTEN: Final = frozenset({"invalid_client", "unauthorized_client"})
_GONE: Final = _FORGOTTEN | {"invalid_grant", "invalid_dpop_proof", "bad_refresh_token"}  # GitHub's


class _Source(Enum):
    """Where a token comes from."""

    STORE = auto()
    REFRESH = auto()
    GRANT = auto()


class Engine:
    """Implements `transports.http.client.credentials.Credentials`."""

    def __init__(
        self,
        server: str,
        grant: Grant,
        *,
        store: TokenStore,
        egress: Egress,
        scopes: tuple[str, ...] = (),
        dpop: bool | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`scopes` are asked for in any case. `dpop` binds tokens to a key; None: where that is required."""
        self._server = server
        self._origin = origin_of(server)
        self._grant = grant
        self._store = store
        self._egress = egress
        self._scopes = scopes
        self._dpop = dpop
        self._now = now
        self._key = key_for(server, grant.name)
        self._flight = Flight()
        self._asks = False  # a person is being asked
        self._loaded = False
        self._kept: Kept | None = None
        self._source = _Source.STORE
        self._accepted = False  # the server has taken the token at least once
        self._grants = 0  # in a row
        self._granted = 0.0  # when the last was
        self._found: Found | None = None
        self._prover: Prover | None = None

    # --- what goes with a request --------------------------------------------------------------

    async def headers(self, method: str, url: str) -> Mapping[str, str]:
        """The token, renewed if it is about to run out; to nobody but the server."""
        if self._origin is None or origin_of(url) != self._origin:
            return {}
        with _kept_safe():
            if not self._loaded:
                self._take(read_kept(await self._store.get(self._key)), _Source.STORE)
            if self._kept is not None and self._runs_out(self._kept) and not self._asks:
                await self._renewed(self._kept)
        kept = self._kept
        if kept is None:
            return {}
        if self._prover is None or kept.kind != "DPoP":
            return {"Authorization": f"Bearer {kept.access}"}
        return {"Authorization": f"DPoP {kept.access}", "DPoP": self._prover.proof(method, url, kept.access)}

    def _runs_out(self, kept: Kept) -> bool:
        """Whether it is time for another token; one that nobody has used is good, as long as it lives."""
        now, unused = self._now(), self._source is not _Source.STORE and not self._accepted
        due = kept.expires if unused and kept is self._kept else kept.renew
        return due is not None and due <= now

    async def _renewed(self, kept: Kept) -> None:
        """Renews a token that is about to run out, if nobody has to be asked. One that is good for a while longer is
        used as it is, if that fails."""
        if kept.refresh is None and self._grant.person:
            return
        try:
            await self._flight.join(self._renew)
        except AuthorizationFailed:
            if kept.expires is None or kept.expires <= self._now():
                raise

    async def _renew(self) -> None:
        kept = self._kept
        if kept is None or not self._runs_out(kept):
            return
        if self._found is None:
            self._found = await self._discovered(kept.hint)
        if kept.issuer == self._found.server.issuer and kept.refresh is not None:
            await self._refresh(kept, self._found)
        elif not self._grant.person:
            await self._obtain(self._found, kept.requested)

    # --- what a server says to it --------------------------------------------------------------

    async def heard(self, heard: Heard, asking: Asking) -> bool:
        """Gets a token, or a better one, if the server asks for it."""
        if self._prover is not None:
            self._prover.heard(heard.url, heard.headers)
        demand = demand_in(heard)
        if demand is None or demand.status == FORBIDDEN:
            self._note(token_in(heard.sent), succeeded=heard.status < _FAILED)
        if demand is None:
            return False
        prover = self._prover if demand.error == "use_dpop_nonce" else None
        if prover is not None and prover.betters(heard.sent.get("DPoP"), heard.url):
            return True
        asking(True)
        try:
            with _kept_safe():
                await self._flight.join(lambda: self._settle(demand))
        finally:
            asking(False)
        return True

    def _note(self, sent: str | None, *, succeeded: bool) -> None:
        if self._kept is not None and sent == self._kept.access:
            self._accepted = True
            if succeeded:
                self._grants = 0

    async def _settle(self, demand: Demand) -> None:
        """Gets a token that the server may like better."""
        kept, latest = self._kept, read_kept(await self._store.get(self._key))
        if latest is not None and demand.sent != latest.access:
            self._take(latest, _Source.STORE)
            return  # somebody else did, here or in another process, while this request was under way
        self._stop_if_in_vain(demand)
        found = self._found = await self._discovered(demand.hint or (None if kept is None else kept.hint))
        if demand.bound:
            found = self._found = replace(found, bound=True)
        if kept is not None and demand.status == UNAUTHORIZED and kept.issuer == found.server.issuer:
            unused = self._source is _Source.REFRESH and not self._accepted
            if not unused and await self._refresh(kept, found):
                return
        await self._obtain(found, self._scopes_for(demand, found))

    def _stop_if_in_vain(self, demand: Demand) -> None:
        """Raises, if the server has been given what it asked for and is not content."""
        ours = () if self._kept is None else self._kept.requested
        now, expires = self._now(), None if self._kept is None else self._kept.expires
        over = expires is not None and expires <= now and self._accepted and demand.status == UNAUTHORIZED
        if now - self._granted > _JUST or over:
            self._grants = 0
            return
        refused = demand.status == UNAUTHORIZED and not self._accepted
        forbidden = demand.status == FORBIDDEN and set(demand.scopes or ()) <= set(ours)
        if (self._source is _Source.GRANT and (refused or forbidden)) or self._grants >= _MOST_GRANTS:
            why = f"the server refuses the token that was just issued for it{demand.words}"
            clause = "authorization, Scope Challenge Handling" if forbidden else "RFC 6750, section 3.1"
            raise AuthorizationFailed(why, hop="retry", clause=clause)

    def _scopes_for(self, demand: Demand, found: Found) -> tuple[str, ...]:
        """What to ask for (authorization, "Scope Selection Strategy"): what the server wants now, and all that this
        authorization server was asked for before."""
        kept = self._kept
        before = kept.requested if kept is not None and kept.issuer == found.server.issuer else ()
        named = demand.scopes if demand.scopes is not None else (self._scopes or found.scopes or ())
        chosen = dict.fromkeys((*before, *named, *self._scopes))
        if self._grant.person and chosen and _OFFLINE in (found.server.scopes_supported or ()):
            chosen[_OFFLINE] = None
        return tuple(chosen)

    # --- getting tokens ------------------------------------------------------------------------

    async def _discovered(self, hint: str | None) -> Found:
        issuers = self._grant.issuers or ((self._kept.issuer,) if self._kept is not None else ())
        return await discover(self._egress, self._server, hint, issuers=issuers)

    async def _obtain(self, found: Found, scopes: tuple[str, ...]) -> None:
        bound = found.bound if self._dpop is None else self._dpop
        prover = self._prover if bound else None
        if bound and prover is None:
            prover = self._prover = Prover(new_key(found.server.dpop_signing_alg_values_supported), self._now)
        self._asks = self._grant.person
        try:
            identity, answer = await self._grant.obtain(self._errand(found, scopes, prover))
        finally:
            self._asks = False
        if bound and answer.kind != "DPoP":
            why = "the authorization server does not bind its tokens to a key"
            raise AuthorizationFailed(why, hop="token", clause="RFC 9449, section 5")
        self._grants += 1
        self._granted = self._now()
        await self._keep(self._made(found, identity, answer, scopes, prover), _Source.GRANT)

    async def _refresh(self, kept: Kept, found: Found) -> bool:
        """Renews a token, and whether that could be done. Only one of all who share the store does it: a token that
        renews others can be used once."""
        async with self._store.locked(self._key):
            latest = read_kept(await self._store.get(self._key))
            if latest is not None and latest.access != kept.access and latest.issuer == found.server.issuer:
                self._take(latest, _Source.STORE)
                if not self._runs_out(latest):
                    return True
                kept = latest
            if kept.refresh is None:
                return False
            return await self._refresh_now(kept, kept.refresh, found)

    async def _refresh_now(self, kept: Kept, token: str, found: Found) -> bool:
        errand = self._errand(found, (), self._prover)
        identity = await self._grant.identity(errand, kept.client_id)
        if identity is None:
            return False
        fields = fields_for(errand, "refresh_token", refresh_token=token)
        try:
            body = await errand.endpoint.ask(identity, fields, hop="refresh")
        except Refused as refused:
            if refused.error not in _GONE:
                raise
            if identity.registered and refused.error in _FORGOTTEN:
                await self._grant.forget(errand)
            await self._keep(replace(kept, refresh=None), self._source)
            return False
        answer = read_answer(body, hop="refresh")
        made = self._made(found, identity, answer, kept.requested, self._prover)
        granted = kept.granted if answer.scopes is None else answer.scopes
        await self._keep(replace(made, refresh=answer.refresh or token, granted=granted), _Source.REFRESH)
        return True

    def _errand(self, found: Found, scopes: tuple[str, ...], prover: Prover | None) -> Errand:
        endpoint = TokenEndpoint(self._egress, found.server, prover, self._now)
        return Errand(self._server, found, scopes, endpoint, self._egress, self._store, self._now)

    def _made(
        self, found: Found, identity: Identity, answer: Answer, scopes: tuple[str, ...], prover: Prover | None
    ) -> Kept:
        bound = prover is not None and answer.kind == "DPoP"
        return Kept(
            issuer=found.server.issuer,
            client_id=identity.client_id,
            access=answer.access,
            kind=answer.kind,
            expires=None if answer.lifetime is None else self._now() + answer.lifetime,
            renew=None if answer.lifetime is None else self._now() + _usable(answer.lifetime),
            refresh=answer.refresh,
            granted=scopes if answer.scopes is None else answer.scopes,
            requested=scopes,
            hint=found.hint,
            key=prover.key.to_jwk() if prover is not None and bound else None,
        )

    async def _keep(self, kept: Kept, source: _Source) -> None:
        """Keeps a token before it is used: whoever has used up the one before cannot get another."""
        await self._store.put(self._key, write_kept(kept))
        self._take(kept, source)

    def _take(self, kept: Kept | None, source: _Source) -> None:
        same = kept is not None and self._kept is not None and kept.access == self._kept.access
        self._loaded = True
        self._kept = kept
        if not same:
            self._source, self._accepted = source, False
        if kept is None or kept.key is None:
            self._prover = None
        elif self._prover is None or self._prover.key.to_jwk() != kept.key:
            self._prover = _prover(kept.key, self._now)


@contextmanager
def _kept_safe() -> Generator[None]:
    """What cannot be kept is told as what it is about."""
    try:
        yield
    except StoreError as error:
        raise AuthorizationFailed(f"the tokens cannot be kept or read: {error}", hop="token") from error


def _usable(lifetime: float) -> float:
    """How long a token is used; the rest of its life, or a quarter of a short one, is for getting another. One that
    hardly lives is used once."""
    return 0.0 if lifetime < _MARGIN else lifetime - min(_MARGIN, lifetime / 4)


def _prover(jwk: Mapping[str, object], now: Callable[[], float]) -> Prover | None:
    try:
        return Prover(SigningKey.from_jwk(jwk), now)
    except ConfigError:
        return None
