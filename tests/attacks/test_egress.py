"""Server-side request forgery: a peer names the URLs of its metadata, keys and logins, and would direct us to internal
addresses. Every address here is invented: sockets connect to this machine alone.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from typing import Any

import pytest
from tests.attacks.fake_internet import Internet, Issuer, Site, SiteRequest, page, redirect, site
from tests.attacks.raw import within
from tests.contract.connections import client_tls, server_tls

from trunkline import Settings
from trunkline.auth import Jwt
from trunkline.auth.discovery import discover, find_authorization_server
from trunkline.auth.fetch import Egress
from trunkline.auth.server.verifiers import Unavailable
from trunkline.auth.ssrf import EgressPolicy
from trunkline.errors import AuthorizationFailed

PUBLIC, PUBLIC_TOO = "93.184.216.34", "93.184.216.35"
SERVER = "https://mcp.example/mcp"
CLOUD = "169.254.169.254"  # metadata services of clouds
PRIVATE = [
    *("127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", CLOUD, "169.254.0.1"),
    *("0.0.0.0", "100.64.0.1", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"),
    *("64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:a00:1::1", "2001:0:1::1", "::10.0.0.1", "fec0::1"),
]  # fmt: skip
UNUSUAL_NOTATIONS = [  # this machine, or the metadata service, in notations that some parsers accept
    *("2130706433", "0x7f000001", "017700000001", "127.1", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "127.000.000.001"),
    *("2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "169.16689662", "0xA9.0xFE.0xA9.0xFE"),
    *("[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:169.254.169.254]"),
    *("localhost", "LOCALHOST", "localhost.", "a.localhost", "[fe80::1%25eth0]", "[64:ff9b::169.254.169.254]"),
]  # fmt: skip
UNREADABLE = [  # URLs in which parsers disagree about the host
    *(f"https://mcp.example@{CLOUD}/", f"https://{CLOUD}\\@mcp.example/", f"https://mcp.example\\@{CLOUD}/"),
    *(f"https://mcp.example:443@{CLOUD}/", f"https://{CLOUD}#@mcp.example/", f"https://mcp.example\t@{CLOUD}/"),
    *(f"https:{CLOUD}/", f"https:///{CLOUD}/", f"//{CLOUD}/", f"http://{CLOUD}/", f"https://{CLOUD}:0/", "https://①②⑦.⓪.⓪.①/"),
    *("file:///etc/passwd", "gopher://mcp.example/", "ftp://mcp.example/", "data:,x", "unix:/run/x", "", "https://"),
]  # fmt: skip


@pytest.fixture
def egress(internet: Internet) -> Egress:
    """The fetcher, on the internet of the test."""
    return reaching(internet)


def reaching(internet: Internet, reach: EgressPolicy | None = None, **settings: Any) -> Egress:
    tls = client_tls()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE  # names of the sites are invented
    return Egress(reach or EgressPolicy(), settings=Settings(**settings), tls=tls, resolve=internet.resolve)


@asynccontextmanager
async def public(internet: Internet, name: str = "mcp.example", address: str = PUBLIC) -> AsyncIterator[Site]:
    """A site at a public address."""
    async with site(f"https://{name}", server_tls()) as there:
        internet.has(name, there, address)
        yield there


async def refused(asked: Awaitable[Any]) -> AuthorizationFailed:
    """Return why a fetch was rejected."""
    try:
        answer = await within(asked, "a refusal")
    except AuthorizationFailed as error:
        return error
    raise AssertionError(f"there was an answer: {answer}")


def connected_hosts(internet: Internet) -> list[str]:
    """The hosts that were connected to. Clears the list, so that the fixture does not fail again."""
    found, internet.connected = internet.connected, []
    return found


# --- addresses and names -----------------------------------------------------------------------------


async def test_private_addresses_are_denied_in_any_spelling(egress: Egress, internet: Internet) -> None:
    literal = [f"https://[{one}]/" if ":" in one else f"https://{one}/" for one in PRIVATE]
    for url in (*literal, *(f"https://{one}:8443/latest/meta-data" for one in UNUSUAL_NOTATIONS), *UNREADABLE):
        for asked in (
            egress.get(url, hop="keys"),
            egress.post(url, b"x", hop="keys"),
            egress.get_without_redirects(url, hop="keys"),
        ):
            assert (await refused(asked)).hop == "keys", url
    assert connected_hosts(internet) == []
    assert internet.looked_up == []


async def test_name_with_private_address_is_denied(egress: Egress, internet: Internet) -> None:
    for address in PRIVATE:
        for found in ([address], [PUBLIC, address], [address, PUBLIC]):
            internet.names["inner.example"] = [found]
            error = await refused(egress.get("https://inner.example/", hop="keys"))
            assert "inner.example" in str(error), found
            assert connected_hosts(internet) == [], found


async def test_dns_rebinding_is_denied(egress: Egress, internet: Internet) -> None:
    async with public(internet) as there:
        for address in (CLOUD, "127.0.0.1", "10.0.0.1"):
            internet.names["mcp.example"] = [[PUBLIC], [address]]
            there.pages["/"] = redirect("https://mcp.example/again")
            await refused(egress.get("https://mcp.example/", hop="keys"))
            assert connected_hosts(internet) == [PUBLIC]
            internet.names["mcp.example"] = [[PUBLIC], [address]]
            await egress.get_without_redirects(
                "https://mcp.example/", hop="keys"
            )  # the checked address is the one connected to
            assert connected_hosts(internet) == [PUBLIC]
            assert len(internet.names["mcp.example"]) == 1
            await refused(egress.get_without_redirects("https://mcp.example/", hop="keys"))
            assert connected_hosts(internet) == []


async def test_socket_connects_only_to_checked_address(internet: Internet) -> None:
    """Addresses that change between the check and the connection are checked again."""
    from trunkline.transports.http.client import dial

    def elsewhere(addresses: list[Any]) -> list[Any]:
        return [address._replace(sockaddr=(CLOUD, 443)) for address in addresses]

    internet.names["mcp.example"] = [[PUBLIC]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dial, "_alternate_families", elsewhere)
        await refused(reaching(internet).get("https://mcp.example/", hop="keys"))
    assert connected_hosts(internet) == []


async def test_configured_url_does_not_open_its_network(internet: Internet) -> None:
    named = reaching(internet, EgressPolicy.for_url("https://10.0.0.5/mcp", Settings()))
    await refused(named.get("https://10.0.0.6/", hop="keys"))
    await refused(named.get(f"https://{CLOUD}/", hop="keys"))
    await refused(named.get("https://localhost/", hop="keys"))
    assert connected_hosts(internet) == []
    by_name = reaching(internet, EgressPolicy.for_url("https://inner.example/mcp", Settings()))
    for address in (CLOUD, "fd00:ec2::254", "::ffff:169.254.169.254"):
        internet.names["inner.example"] = [[address]]
        internet.names["other.example"] = [[address]]
        if address != "fd00:ec2::254":  # a private network like any other, where an intranet may be
            await refused(by_name.get("https://inner.example/", hop="keys"))
        await refused(by_name.get("https://other.example/", hop="keys"))
    assert connected_hosts(internet) == []
    here = reaching(internet, EgressPolicy.for_url("http://localhost:1/mcp", Settings()))
    for url in ("https://10.0.0.5/", f"http://{CLOUD}/", "http://10.0.0.5/", "http://mcp.example/"):
        await refused(here.get(url, hop="keys"))
    assert connected_hosts(internet) == []


# --- redirects ---------------------------------------------------------------------------------------

FORBIDDEN_TARGETS = [
    *(f"https://{CLOUD}/latest", "https://127.0.0.1/", "https://[::1]/", "https://2130706433/", "//10.0.0.1/"),
    *("http://mcp.example/", f"http://{PUBLIC}/", "http://localhost/", "ftp://mcp.example/", "file:///etc/passwd"),
    *("https://inner.example/", "https://mcp.example\\@10.0.0.1/", "https://user:pass@mcp.example/", "https://["),
]  # fmt: skip


async def test_redirect_to_denied_target_is_refused(egress: Egress, internet: Internet) -> None:
    async with public(internet) as there:
        internet.names["inner.example"] = [["10.0.0.1"]]
        for location, status in zip(FORBIDDEN_TARGETS, cycle((301, 302, 303, 307, 308)), strict=False):
            there.pages["/"] = redirect(location, status)
            await refused(egress.get("https://mcp.example/", hop="keys"))
            assert connected_hosts(internet) == [PUBLIC], location
    assert set(there.paths) == {"/"}


async def test_secrets_do_not_follow_redirects(egress: Egress, internet: Internet) -> None:
    async with public(internet) as there, public(internet, "evil.example", PUBLIC_TOO) as evil:
        for status in (301, 302, 303, 307, 308):
            there.pages["/token"] = redirect(
                "https://evil.example/" if status % 2 else "https://mcp.example/other", status
            )
            await refused(egress.post("https://mcp.example/token", b"client_secret=canary", hop="token"))
        for name in ("Authorization", "DPoP", "Cookie", "X-Api-Key"):
            await refused(egress.get("https://mcp.example/token", hop="token", headers={name: "canary"}))
    assert evil.asked == []
    assert set(there.paths) == {"/token"}


async def test_number_of_redirects_is_bounded(egress: Egress, internet: Internet) -> None:
    async with public(internet) as there:
        there.other = lambda asked: redirect(f"https://mcp.example{asked.path}x")
        await refused(egress.get("https://mcp.example/", hop="keys"))
    assert len(there.asked) <= 4


# --- endless responses -------------------------------------------------------------------------------


async def test_endless_response_is_bounded(internet: Internet) -> None:
    sent: list[int] = []

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while len(sent) < 2000 and not writer.is_closing():  # 128 MiB
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)  # to learn that the reader has gone
            sent.append(0x10000)

    async with public(internet) as there:
        there.serve = endless
        await refused(reaching(internet).get("https://mcp.example/", hop="keys"))
        there.serve = Site.serve.__get__(there)
        there.pages["/"] = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"
        await refused(reaching(internet).get("https://mcp.example/", hop="keys"))
    assert sum(sent) < 32 << 20


async def test_missing_response_times_out(internet: Internet) -> None:
    async def never(_: SiteRequest) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with public(internet) as there:
        egress = reaching(internet, egress_timeout=0.05)
        for says in (never, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx", b"HTTP/1.1 200 OK\r\n"):
            there.pages["/"] = says
            assert "within" in str(await refused(egress.get("https://mcp.example/", hop="keys")))


async def test_compressed_response_is_refused(egress: Egress, internet: Internet) -> None:
    async with public(internet) as there:
        for coding in ("gzip", "deflate", "br", "zstd", "identity, gzip"):
            there.pages["/"] = page(b"x", 200, ("content-encoding", coding))
            await refused(egress.get("https://mcp.example/", hop="keys"))


# --- discovery ---------------------------------------------------------------------------------------

RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"
AUTHORITIES = [f"https://{CLOUD}", "https://127.0.0.1:8443", "https://inner.example", "https://[::ffff:10.0.0.1]/x"]


async def test_resource_metadata_must_be_on_the_server(egress: Egress, internet: Internet) -> None:
    async with public(internet) as there, public(internet, "evil.example", PUBLIC_TOO) as evil:
        good = {"resource": SERVER, "authorization_servers": ["https://evil.example"]}
        there.pages["/other"] = evil.other = page(good)
        for hint in (
            *("https://evil.example/prm", "http://mcp.example/prm", "https://mcp.example:444/prm", f"https://{CLOUD}/"),
            *(
                "https://mcp.example@evil.example/",
                "https://evil.example\\.mcp.example/",
                "//evil.example/",
                "/prm",
                "",
            ),
            *("https://mcp.example.evil.example/prm", "javascript:1", "https://localhost/", "https://mcp.example\n/"),
        ):
            assert (await refused(discover(egress, SERVER, hint))).hop == "server", hint
        assert (connected_hosts(internet), evil.asked, there.asked) == ([], [], [])


async def test_private_issuer_of_peer_is_denied(egress: Egress, internet: Internet) -> None:
    internet.names["inner.example"] = [["192.168.0.1"]]
    async with public(internet) as there:
        for named in (*AUTHORITIES, "http://evil.example", "https://user@evil.example", "javascript:x", "file:///x"):
            there.pages[RESOURCE_METADATA] = page({"resource": SERVER, "authorization_servers": [named]})
            await refused(discover(egress, SERVER, None))
            assert set(connected_hosts(internet)) == {PUBLIC}, named


async def test_redirected_document_cannot_reach_private_hosts(egress: Egress, internet: Internet) -> None:
    async with public(internet) as there:
        for location in (f"https://{CLOUD}/", "https://localhost/", "http://mcp.example/x", "https://0x7f.1/"):
            there.other = redirect(location)
            await refused(discover(egress, SERVER, None))
            await refused(find_authorization_server(egress, "https://mcp.example"))
            assert set(connected_hosts(internet)) == {PUBLIC}, location


async def test_private_jwks_uri_is_denied(egress: Egress, internet: Internet) -> None:
    async with public(internet, "login.example", PUBLIC_TOO) as there:
        known = Issuer(there)
        for named in (*(f"{one}/jwks" for one in AUTHORITIES), "http://login.example/jwks", "file:///etc/passwd"):
            known.metadata["jwks_uri"] = named
            asked = Jwt(known.name, egress=egress).verify(known.token(SERVER), {SERVER}, 1.9e9)
            assert isinstance(asked, Awaitable)
            with suppress(Unavailable):
                assert await within(asked, "a refusal") is None
            assert set(connected_hosts(internet)) == {PUBLIC_TOO}, named
