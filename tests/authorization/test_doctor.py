"""The doctor, on real servers: one of ours, and third-party authorization servers."""

import pytest
from tests.authorization.notes_server import notes, serving
from tests.authorization.provider import Provider
from tests.authorization.replay import NAMES
from tests.authorization.test_profiles import UNTOLD, protected

from trunkline import Settings
from trunkline.auth import Jwt
from trunkline.auth.doctor.examine import HOPS, examine
from trunkline.auth.fetch import Egress
from trunkline.auth.ssrf import EgressPolicy
from trunkline.findings import Finding


async def look(url: str) -> list[Finding]:
    return await examine(url, Egress(EgressPolicy.for_url(url, Settings())))


@pytest.mark.row("PROMISE-11")
async def test_own_server_and_provider_are_healthy(provider: Provider) -> None:
    async with serving(notes(Jwt(provider.issuer))) as url:
        findings = await look(url)

    assert [(finding.hop, finding.verdict) for finding in findings] == [(hop, "ok") for hop in HOPS]


@pytest.mark.row("PROMISE-11")
@pytest.mark.parametrize("name", NAMES)
async def test_known_providers_fail_only_without_pkce(name: str) -> None:
    async with protected(name) as (_, url):
        findings = await look(url)

    failed = [(finding.hop, finding.clause) for finding in findings if finding.verdict == "failed"]
    clause = "MCP authorization, Authorization Code Protection"
    assert failed == ([("authorization-server-metadata", clause)] if name in UNTOLD else [])
    assert "skipped" not in {finding.verdict for finding in findings}
