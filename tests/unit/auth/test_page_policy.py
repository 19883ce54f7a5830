"""Pages that a peer asks a user to open, under the policy for addresses that we fetch ourselves."""

import asyncio
import socket
from collections.abc import Iterable

import pytest

from trunkline.auth.fetch import Egress
from trunkline.auth.page_policy import check_page_addresses, check_page_addresses_blocking, parse_page_url
from trunkline.auth.ssrf import EgressDenied, EgressPolicy
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed

LOCAL = EgressPolicy(loopback=True)
PRIVATE = [
    *("https://10.0.0.1/", "https://167772161/", "https://0xa.0.0.1/", "https://10.1/", "https://012.0.0.1/"),
    *("https://10.0.0.1./", "https://0x0a000001/", "https://[::ffff:10.0.0.1]/", "https://[::ffff:a00:1]/"),
    *("https://[64:ff9b::10.0.0.1]/", "https://[64:ff9b:1::a00:1]/", "https://[2002:a00:1::]/", "https://[fd00::1]/"),
    *("https://[2001:0:a00:1::]/", "https://[::10.0.0.1]/", "https://169.254.169.254/", "https://100.64.0.1/"),
    *("https://0.0.0.0/", "https://[::]/", "https://[fe80::1]/", "https://192.168.0.1:8443/x?y#z"),
]
MISSPELT = [
    *(
        "https://10\u30020.0.1/",
        "https://10\uff0e0\uff0e0\uff0e1/",
        "https://\uff11\uff10.0.0.1/",
        "https://b\u00fccher.example/",
    ),
    *("https://example.org/\r\nx", "https://example.org/\x1b[2J", "https://exam\tple.org/", "https://example.org/ x"),
    *("https://user@example.org/", "https://user:secret@example.org/", "https://10.0.0.1@example.org/"),
    *("https://example.org\\@10.0.0.1/", "https://example.org:99999/", "https://example.org:0/", "https://[::1/"),
    *("javascript:alert(1)", "file:///etc/passwd", "//example.org", "https://", "", "https://%31%30.0.0.1/"),
    *("\x00https://example.org/", "https://example.org/\u202e", "https://example.org/\x9b", "https://1.2.3.4.5/"),
    "https://example.org/" + "x" * 9000,
]


@pytest.mark.parametrize("url", [*PRIVATE, *MISSPELT], ids=ascii)
def test_private_or_malformed_url_is_denied(url: str) -> None:
    with pytest.raises(EgressDenied):
        parse_page_url(url, LOCAL)


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/", "https://2130706433/", "http://localhost:8000/x", "https://[::1]/"]
)
def test_local_page_needs_local_server(url: str) -> None:
    assert parse_page_url(url, LOCAL).is_local
    with pytest.raises(EgressDenied):
        parse_page_url(url, EgressPolicy())


def names(monkeypatch: pytest.MonkeyPatch, **known: Iterable[str]) -> None:
    def look_up(host: str, *_: object, **__: object) -> list[object]:
        if host.partition(".")[0] not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in known[host.partition(".")[0]]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("public.example", False),
        ("private.example", True),
        ("one-of-two.example", True),
        ("here.example", True),
        ("wrapped.example", True),
        ("unknown.example", False),  # from here; a browser may be elsewhere
        (f"{'x' * 64}.example", False),
    ],
)
async def test_all_addresses_of_a_name_are_checked(host: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("https_proxy", raising=False)
    known = {
        "public": ["93.184.216.34", "2606:2800:220:1::1"],
        "private": ["10.0.0.1"],
        "one-of-two": ["93.184.216.34", "fd00::1"],
        "here": ["127.0.0.1"],
        "wrapped": ["64:ff9b::a00:1"],
    }
    names(monkeypatch, **known)
    reach, there = EgressPolicy(), parse_page_url(f"https://{host}/", EgressPolicy())
    for judged in (
        lambda: check_page_addresses(there, reach),
        lambda: asyncio.to_thread(check_page_addresses_blocking, there, reach),
    ):
        if refused:
            with pytest.raises(EgressDenied, match=host):
                await judged()
        else:
            await judged()


async def test_proxy_skips_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    names(monkeypatch, private=["10.0.0.1"])
    there = parse_page_url("https://private.example/", EgressPolicy())
    await check_page_addresses(there, EgressPolicy())
    check_page_addresses_blocking(there, EgressPolicy())


async def test_ip_literal_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(socket, "getaddrinfo", never)
    there = parse_page_url("https://93.184.216.34/", EgressPolicy())
    await check_page_addresses(there, EgressPolicy())
    check_page_addresses_blocking(there, EgressPolicy())


async def test_private_login_page_needs_setting() -> None:
    async def resolve(_: str) -> list[str]:
        return ["10.0.0.1"]

    for url in ("https://10.1/login", "https://login.example/page"):
        with pytest.raises(AuthorizationFailed, match="must not be opened") as refused:
            await Egress(EgressPolicy(), resolve=resolve).check_page(url, hop="authorization")
        assert refused.value.hop == "authorization"
    allowed = Settings(egress_allowed=("login.example",))
    reach = EgressPolicy.for_url("https://mcp.example/mcp", allowed)
    await Egress(reach, settings=allowed, resolve=resolve).check_page("https://login.example/page", hop="authorization")
