"""Walks the way of MCP authorization as a client goes it, without logging in, and tells how each hop stands.

It goes by the same functions as the client does, so that what it finds is what the client meets. What goes wrong is a
finding and no exception: the walk ends where it cannot go on, and what lies behind is marked as not tried.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from msgspec.structs import replace

from trunkline.auth import discovery
from trunkline.auth.doctor import diagnose
from trunkline.auth.doctor.probe import Door, Opened, door
from trunkline.auth.doctor.report import Finding
from trunkline.auth.fetch import Answer, Egress
from trunkline.auth.metadata import (
    AssumedMetadata,
    ResourceMetadata,
    ServerMetadata,
    require_pkce,
    resource_metadata_urls,
    server_metadata_urls,
)
from trunkline.auth.urls import safe_text
from trunkline.errors import AuthorizationFailed, TransportError

__all__ = ["HOPS", "examine"]

HOPS: Final = (
    "address",
    "server",
    "resource-metadata",
    "authorization-server-metadata",
    "registration",
    "authorization",
    "token",
    "keys",
)
"""The hops in the order of the way."""

_ELSEWHERE: Final = {"Origin": "https://browser.invalid"}  # a page that is nobody's
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_BAD_CODE: Final = {
    "grant_type": "authorization_code",
    "client_id": "trunkline-auth-doctor",
    "code": "none",
    "code_verifier": "n" * 43,
    "redirect_uri": "http://127.0.0.1/none",
}


async def examine(url: str, egress: Egress, *, patience: float = 10.0, token: str | None = None) -> list[Finding]:
    """How each hop stands on the way to a token for an MCP server. A token is tried, too, if one is given. `patience`
    is how long, in seconds, the server itself may take to answer; `egress` has its own."""
    walk = _Walk(url, egress)
    refused = diagnose.of_url(url)
    if refused is None:
        async with door(url, patience) as server:
            await walk.go(server, token)
    else:
        walk.note(refused)
    return walk.findings + _not_tried(walk.findings)


def _not_tried(findings: list[Finding]) -> list[Finding]:
    """The hops that nothing is known of, if something failed before them."""
    failed = [finding.hop for finding in findings if finding.verdict == "failed"]
    known = {finding.hop for finding in findings}
    left = [hop for hop in HOPS if hop not in known] if failed else []
    return [Finding(hop, "skipped", f"not tried, since {failed[0]!r} failed") for hop in left]


class _Walk:
    """One walk, and what was found on it."""

    def __init__(self, url: str, egress: Egress) -> None:
        self.findings: list[Finding] = []
        self._url = url
        self._egress = egress

    def note(self, *findings: Finding) -> None:
        self.findings += findings

    async def go(self, server: Door, token: str | None) -> None:
        """Goes all the way, or as far as it leads."""
        try:
            opened = await server.knock()
        except TransportError as error:
            self.note(diagnose.of_silence("address", self._url, error))
            return
        self.note(*diagnose.of_address(self._url, opened), diagnose.of_answer(opened))
        if opened.status == diagnose.UNAUTHORIZED and self.findings[0].verdict != "failed":
            await self._ask_around(opened)
        if token is not None:
            await self._show(server, token)

    async def _show(self, server: Door, token: str) -> None:
        """Comes back with a token."""
        if diagnose.in_the_clear(self._url):
            self.note(diagnose.of_token_in_the_clear(self._url))
            return
        try:
            opened = await server.knock({"Authorization": f"Bearer {token}"})
        except TransportError as error:
            self.note(diagnose.of_silence("retry", self._url, error))
        else:
            self.note(diagnose.of_token(opened))

    # --- who issues tokens ---------------------------------------------------------------------

    async def _ask_around(self, opened: Opened) -> None:
        """Finds the authorization servers, and looks at each."""
        asked = diagnose.asked_for(opened)
        hint = None if asked is None else asked.params.get("resource_metadata")
        try:
            found = await discovery.find_resource(self._egress, self._url, hint)
            if found is None:
                await self._as_of_old()
                return
        except AuthorizationFailed as error:
            places = resource_metadata_urls(self._url) if error.hop == "resource-metadata" else ()
            self.note(diagnose.of_failure(error, await self._at(hint, *places)))
            return
        where, metadata = found
        self.note(*diagnose.of_resource(where, metadata, self._url, hint, asked))
        await self._read_elsewhere("resource-metadata", where)
        await self._issuers(metadata)

    async def _as_of_old(self) -> None:
        """A server that may be its own authorization server, as in 2025-03-26."""
        metadata = (await discovery.discover(self._egress, self._url, None)).server
        seen = await self._at(*resource_metadata_urls(self._url))
        self.note(diagnose.of_no_resource(metadata, seen))
        if not isinstance(metadata, AssumedMetadata):
            await self._server(metadata)

    async def _issuers(self, resource: ResourceMetadata) -> None:
        """Looks at each authorization server. A client takes the first that can be found, so that it is a pity about
        others that cannot, and no more."""
        issuers, failed = resource.authorization_servers or (), list[Finding]()
        for issuer in issuers:
            try:
                where, metadata = await discovery.locate_server(self._egress, issuer)
            except AuthorizationFailed as error:
                failed.append(diagnose.of_failure(error, await self._at(*server_metadata_urls(issuer))))
                continue
            self.note(Finding("authorization-server-metadata", "ok", f"{safe_text(issuer)} publishes it at {where}"))
            await self._read_elsewhere("authorization-server-metadata", where)
            await self._server(metadata)
        if len(failed) < len(issuers):
            failed = [replace(finding, verdict="warning") for finding in failed]
        self.note(*failed)

    # --- the authorization server --------------------------------------------------------------

    async def _server(self, metadata: ServerMetadata) -> None:
        """What it says of itself, and whether its endpoints are there."""
        try:
            require_pkce(metadata)
        except AuthorizationFailed as error:
            self.note(diagnose.of_failure(error))
        self.note(*diagnose.of_server(metadata), diagnose.of_registration(metadata))
        if (url := metadata.authorization_endpoint) is not None:
            await self._judge(self._egress.look(url, hop="authorization"), diagnose.of_authorization_endpoint)
        if (url := metadata.token_endpoint) is not None:
            body = urlencode({**_BAD_CODE, "resource": self._url}).encode()
            await self._judge(self._egress.post(url, body, hop="token", headers=_FORM), diagnose.of_token_endpoint)
        if (url := metadata.jwks_uri) is not None:
            await self._judge(self._egress.get(url, hop="keys"), diagnose.of_keys)
        else:
            self.note(Finding("keys", "ok", "no `jwks_uri` is named: the server has to ask about each token"))

    async def _judge(self, asked: Awaitable[Answer], of: Callable[[Answer], Finding]) -> None:
        try:
            self.note(of(await asked))
        except AuthorizationFailed as error:
            self.note(diagnose.of_failure(error))

    # --- a closer look -------------------------------------------------------------------------

    async def _at(self, *urls: str | None) -> Sequence[str]:
        """What is at each of some addresses, in a few words."""
        return [await self._briefly(url) for url in dict.fromkeys(urls) if url is not None]

    async def _briefly(self, url: str) -> str:
        try:
            answer = await self._egress.look(url, hop="address")
        except AuthorizationFailed as error:
            return str(error)
        return f"{safe_text(url)} answers {answer.status} {safe_text(answer.kind)}".rstrip()

    async def _read_elsewhere(self, hop: str, url: str) -> None:
        with suppress(AuthorizationFailed):  # it was read a moment ago by whoever matters
            self.note(*diagnose.of_reading_elsewhere(hop, await self._egress.get(url, hop=hop, headers=_ELSEWHERE)))
