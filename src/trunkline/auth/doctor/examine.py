"""Walk the authorization flow as a client does, without logging in, and report each hop.

The doctor calls the client's own functions, so its findings match what a client experiences. Problems become findings,
not exceptions: after a failure the remaining hops are marked as skipped.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from msgspec.structs import replace

from trunkline.auth import discovery
from trunkline.auth.doctor import diagnose
from trunkline.auth.doctor.probe import ProbeResponse, ServerProbe, open_probe
from trunkline.auth.fetch import Egress, FetchResponse
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
from trunkline.findings import Finding

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
"""The hops in the order of the flow."""

_FOREIGN_ORIGIN: Final = {"Origin": "https://browser.invalid"}  # a reserved name, so no site owns it
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_INVALID_CODE: Final = {
    "grant_type": "authorization_code",
    "client_id": "trunkline-auth-doctor",
    "code": "none",
    "code_verifier": "n" * 43,
    "redirect_uri": "http://127.0.0.1/none",
}


async def examine(url: str, egress: Egress, *, timeout: float = 10.0, token: str | None = None) -> list[Finding]:
    """Examine each hop on the way to a token for an MCP server, and try `token` if one is passed.

    `timeout` limits each request to the MCP server, in seconds; `egress` has a timeout of its own.
    """
    walk = _Examination(url, egress)
    invalid_url = diagnose.assess_url(url)
    if invalid_url is None:
        async with open_probe(url, timeout) as server:
            await walk.run(server, token)
    else:
        walk.add(invalid_url)
    return walk.findings + _skipped_hops(walk.findings)


def _skipped_hops(findings: list[Finding]) -> list[Finding]:
    """Return a `skipped` finding for each hop that a failure left unexamined."""
    failed = [finding.hop for finding in findings if finding.verdict == "failed"]
    known = {finding.hop for finding in findings}
    left = [hop for hop in HOPS if hop not in known] if failed else []
    return [Finding(hop, "skipped", f"not tried, since {failed[0]!r} failed") for hop in left]


class _Examination:
    """One examination and its findings."""

    def __init__(self, url: str, egress: Egress) -> None:
        self.findings: list[Finding] = []
        self._url = url
        self._egress = egress

    def add(self, *findings: Finding) -> None:
        self.findings += findings

    async def run(self, probe: ServerProbe, token: str | None) -> None:
        """Examine as many hops as can be reached."""
        try:
            response = await probe.send_first_request()
        except TransportError as error:
            self.add(diagnose.assess_unreachable("address", self._url, error))
            return
        self.add(*diagnose.assess_address(self._url, response), diagnose.assess_response(response))
        if response.status == diagnose.UNAUTHORIZED and self.findings[0].verdict != "failed":
            await self._examine_metadata(response)
        if token is not None:
            await self._try_token(probe, token)

    async def _try_token(self, probe: ServerProbe, token: str) -> None:
        """Repeat the first request with a token."""
        if diagnose.is_unencrypted(self._url):
            self.add(diagnose.assess_unencrypted_token(self._url))
            return
        try:
            response = await probe.send_first_request({"Authorization": f"Bearer {token}"})
        except TransportError as error:
            self.add(diagnose.assess_unreachable("retry", self._url, error))
        else:
            self.add(diagnose.assess_token_response(response))

    # --- discovery ---------------------------------------------------------------------------------

    async def _examine_metadata(self, response: ProbeResponse) -> None:
        """Find the authorization servers and examine each."""
        challenge = diagnose.find_token_challenge(response)
        hint = None if challenge is None else challenge.params.get("resource_metadata")
        try:
            found = await discovery.find_resource_metadata(self._egress, self._url, hint)
            if found is None:
                await self._examine_self_issued()
                return
        except AuthorizationFailed as error:
            urls = resource_metadata_urls(self._url) if error.hop == "resource-metadata" else ()
            self.add(diagnose.assess_failure(error, await self._describe_urls(hint, *urls)))
            return
        where, metadata = found
        self.add(*diagnose.assess_resource_metadata(where, metadata, self._url, hint, challenge))
        await self._check_cors("resource-metadata", where)
        await self._examine_issuers(metadata)

    async def _examine_self_issued(self) -> None:
        """Examine a server that may be its own authorization server, as in 2025-03-26."""
        metadata = (await discovery.discover(self._egress, self._url, None)).authorization_server
        seen = await self._describe_urls(*resource_metadata_urls(self._url))
        self.add(diagnose.assess_missing_resource_metadata(metadata, seen))
        if not isinstance(metadata, AssumedMetadata):
            await self._examine_authorization_server(metadata)

    async def _examine_issuers(self, resource: ResourceMetadata) -> None:
        """Examine each authorization server. A client uses the first usable one, so failures of others are warnings."""
        issuers, failed = resource.authorization_servers or (), list[Finding]()
        for issuer in issuers:
            try:
                where, metadata = await discovery.locate_authorization_server(self._egress, issuer)
            except AuthorizationFailed as error:
                failed.append(diagnose.assess_failure(error, await self._describe_urls(*server_metadata_urls(issuer))))
                continue
            self.add(Finding("authorization-server-metadata", "ok", f"{safe_text(issuer)} publishes it at {where}"))
            await self._check_cors("authorization-server-metadata", where)
            await self._examine_authorization_server(metadata)
        if len(failed) < len(issuers):
            failed = [replace(finding, verdict="warning") for finding in failed]
        self.add(*failed)

    # --- the authorization server ------------------------------------------------------------------

    async def _examine_authorization_server(self, metadata: ServerMetadata) -> None:
        """Check the metadata and the endpoints of an authorization server."""
        try:
            require_pkce(metadata)
        except AuthorizationFailed as error:
            self.add(diagnose.assess_failure(error))
        self.add(*diagnose.assess_server_metadata(metadata), diagnose.assess_registration(metadata))
        if (url := metadata.authorization_endpoint) is not None:
            await self._examine_endpoint(
                self._egress.get_without_redirects(url, hop="authorization"), diagnose.assess_authorization_endpoint
            )
        if (url := metadata.token_endpoint) is not None:
            body = urlencode({**_INVALID_CODE, "resource": self._url}).encode()
            await self._examine_endpoint(
                self._egress.post(url, body, hop="token", headers=_FORM), diagnose.assess_token_endpoint
            )
        if (url := metadata.jwks_uri) is not None:
            await self._examine_endpoint(self._egress.get(url, hop="keys"), diagnose.assess_keys)
        else:
            self.add(Finding("keys", "ok", "no `jwks_uri`: the MCP server must introspect each token"))

    async def _examine_endpoint(
        self, request: Awaitable[FetchResponse], assess: Callable[[FetchResponse], Finding]
    ) -> None:
        try:
            self.add(assess(await request))
        except AuthorizationFailed as error:
            self.add(diagnose.assess_failure(error))

    # --- details -----------------------------------------------------------------------------------

    async def _describe_urls(self, *urls: str | None) -> Sequence[str]:
        """Return a short description of the response at each URL."""
        return [await self._describe_url(url) for url in dict.fromkeys(urls) if url is not None]

    async def _describe_url(self, url: str) -> str:
        try:
            response = await self._egress.get_without_redirects(url, hop="address")
        except AuthorizationFailed as error:
            return str(error)
        return f"{safe_text(url)} answers {response.status} {safe_text(response.media_type)}".rstrip()

    async def _check_cors(self, hop: str, url: str) -> None:
        with suppress(AuthorizationFailed):  # the document itself was read before; only its headers matter here
            self.add(*diagnose.assess_cors(hop, await self._egress.get(url, hop=hop, headers=_FOREIGN_ORIGIN)))
