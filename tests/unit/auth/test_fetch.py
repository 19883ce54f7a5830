"""HTTP fetches of authorization, over real sockets of this machine."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.contract.connections import client_tls, server_tls, turns
from tests.ports import held_port

from trunkline import Settings
from trunkline.auth.fetch import Egress
from trunkline.auth.ssrf import EgressPolicy
from trunkline.errors import AuthorizationFailed

HERE = EgressPolicy(loopback=True)


class Site:
    """A server with configured responses by path, which records its requests."""

    def __init__(self, port: int, scheme: str) -> None:
        self.port = port
        self.url = f"{scheme}://localhost:{port}"
        self.answers: dict[str, bytes] = {}
        self.heads: list[str] = []
        self.bodies: list[bytes] = []

    def says(self, path: str, body: bytes = b"", status: int = 200, **headers: str) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.answers[path] = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body

    @property
    def paths(self) -> list[str]:
        return [head.split(" ")[1] for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        self.bodies.append(await reader.readexactly(length))
        writer.write(self.answers[head.split(" ")[1]])
        await reader.read()  # the client closes the connection


@asynccontextmanager
async def site(tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    made: list[Site] = []
    visits: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.ensure_future(made[0].serve(reader, writer))
        visit.add_done_callback(lambda _: writer.transport.abort())
        visits.add(visit)

    server = await asyncio.start_server(begin, "127.0.0.1", 0, ssl=tls)
    made.append(Site(server.sockets[0].getsockname()[1], "https" if tls else "http"))
    try:
        yield made[0]
    finally:
        server.close()
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        await turns()  # for transports to end


class FixedResolver:
    """A resolver with configured addresses; each look-up returns the next."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The targets of all sockets; they connect to this machine only."""
    connected: list[object] = []

    async def connect(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: tuple[str, int]) -> None:
        connected.append(address[0])
        if address[0] not in {"127.0.0.1", "::1"}:
            raise ConnectionRefusedError
        await real(loop, sock, address)

    real = asyncio.SelectorEventLoop.sock_connect
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)
    return connected


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def refused(egress: Egress, url: str, hop: str = "keys") -> AuthorizationFailed:
    with pytest.raises(AuthorizationFailed) as raised:
        await egress.get(url, hop=hop)
    assert raised.value.hop == hop
    return raised.value


# --- responses ----------------------------------------------------------------------------------


async def test_response_has_status_headers_body_and_url() -> None:
    async with site() as here:
        here.says("/a?b=c", b"{}", 404, Content_Type="Application/JSON; charset=utf-8", X_Own="1")
        answer = await Egress(HERE).get(f"{here.url}/a?b=c", hop="keys")
        assert (answer.status, answer.body, answer.media_type) == (404, b"{}", "application/json")
        assert (answer.headers["x-own"], answer.url) == ("1", f"{here.url}/a?b=c")


async def test_request_sends_only_given_headers() -> None:
    async with site() as here:
        here.says("/token", b"{}", Set_Cookie="a=b")
        egress = Egress(HERE)
        for _ in range(2):
            await egress.post(
                f"{here.url}/token", b"grant=x", hop="token", headers={"accept": "text/plain", "DPoP": "p"}
            )
        head = here.heads[1].lower()
        names = {line.partition(":")[0] for line in head.split("\r\n")[1:] if line}
        assert names == {"host", "user-agent", "accept", "accept-encoding", "dpop", "content-length"}
        assert "accept: text/plain\r\n" in head
        assert "accept-encoding: identity\r\n" in head
        assert here.bodies == [b"grant=x", b"grant=x"]


async def test_https_requires_trusted_certificate() -> None:
    async with site(server_tls()) as here:
        here.says("/", b"hi")
        assert (await Egress(HERE, tls=client_tls()).get(f"{here.url}/", hop="keys")).body == b"hi"
        assert "certificate is not trusted" in str(await refused(Egress(HERE), f"{here.url}/"))


async def test_oversized_body_is_refused() -> None:
    async with site() as here:
        here.says("/", b"x" * 2000)
        here.says("/fits", b"x" * 1024)
        egress = Egress(HERE, settings=Settings(egress_answer_limit=1024))
        assert "1024 bytes" in str(await refused(egress, f"{here.url}/"))
        assert len((await egress.get(f"{here.url}/fits", hop="keys")).body) == 1024


async def test_compressed_response_is_refused() -> None:
    async with site() as here:
        here.says("/", b"\x1f\x8b", Content_Encoding="gzip")
        assert "compressed" in str(await refused(Egress(HERE), f"{here.url}/"))


async def test_missing_response_times_out() -> None:
    async with site() as here:
        here.answers["/slow"] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nsome"
        failed = await refused(Egress(HERE, settings=Settings(egress_timeout=0.05)), f"{here.url}/slow")
        assert str(failed) == f"{here.url}/slow did not respond within 0.05 s"


async def test_connection_error_omits_query() -> None:
    with held_port() as port:
        failed = await refused(Egress(HERE), f"http://127.0.0.1:{port}/a?code=secret", hop="token")
    assert "no server is listening" in str(failed)
    assert f"http://127.0.0.1:{port}/a" in str(failed)
    assert "secret" not in str(failed)
    assert failed.clause == ""


# --- rejected targets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/", "https://[::1]/", "https://2130706433/", "https://localhost/", "https://169.254.169.254/",
     "https://[::ffff:a9fe:a9fe]/", "http://login.example/", "file:///etc/passwd", "https://u:p@login.example/"],
)  # fmt: skip
@pytest.mark.row("SEC-05")
async def test_denied_url_is_not_resolved(url: str, sockets: list[object]) -> None:
    names = FixedResolver(["8.8.8.8"])
    failed = await refused(Egress(resolve=names), url, hop="resource-metadata")
    assert "SSRF" in failed.clause
    assert (names.asked, sockets) == ([], [])


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00::1"])
@pytest.mark.row("SEC-05")
async def test_private_address_is_denied_before_connecting(address: str, sockets: list[object]) -> None:
    failed = await refused(Egress(resolve=FixedResolver([address])), "https://login.example/a?code=hidden")
    assert f"login.example is at {address}, which is" in str(failed)
    assert "SSRF" in failed.clause
    assert "hidden" not in str(failed)
    assert sockets == []


@pytest.mark.row("SEC-05")
async def test_one_private_address_denies_the_name(sockets: list[object]) -> None:
    failed = await refused(Egress(resolve=FixedResolver(["8.8.8.8", "10.0.0.1"])), "https://login.example/")
    assert "10.0.0.1" in str(failed)
    assert sockets == []


@pytest.mark.row("SEC-05")
async def test_public_address_is_allowed(sockets: list[object]) -> None:
    failed = await refused(Egress(resolve=FixedResolver(["8.8.8.8"])), "https://login.example/")
    assert "no server is listening" in str(failed)
    assert sockets == ["8.8.8.8"]


@pytest.mark.row("SEC-05")
async def test_socket_address_is_checked_again(sockets: list[object]) -> None:
    answers = iter([None, "changed its mind"])  # as if the name had been resolved again

    class Wavering(EgressPolicy, frozen=True):
        def denial_reason(self, there: object, address: str) -> str | None:
            return next(answers)

    failed = await refused(Egress(Wavering(), resolve=FixedResolver(["8.8.8.8"])), "https://login.example/")
    assert str(failed) == "changed its mind"
    assert sockets == []


@pytest.mark.row("SEC-05")
async def test_name_is_checked_for_each_request(sockets: list[object]) -> None:
    egress = Egress(resolve=FixedResolver(["8.8.8.8"], ["127.0.0.1"]))
    await refused(egress, "https://login.example/")
    assert "127.0.0.1" in str(await refused(egress, "https://login.example/"))
    assert sockets == ["8.8.8.8"]


async def test_unresolvable_name_is_reported() -> None:
    assert "login.example has no address" in str(
        await refused(Egress(resolve=FixedResolver([])), "https://login.example/")
    )


async def test_allowed_name_may_be_local() -> None:
    async with site(server_tls()) as here:
        here.says("/", b"hi")
        egress = Egress(EgressPolicy(allowed=("localhost",)), tls=client_tls())
        assert (await egress.get(f"{here.url}/", hop="keys")).body == b"hi"


# --- redirects ----------------------------------------------------------------------------------


@pytest.mark.row("SEC-05")
async def test_get_follows_at_most_three_redirects() -> None:
    async with site() as here:
        for step in range(4):
            here.says(f"/{step}", status=302, Location=f"/{step + 1}")
        here.says("/4", b"there")
        answer = await Egress(HERE).get(f"{here.url}/1", hop="keys", headers={"Accept": "application/json"})
        assert (answer.body, answer.url) == (b"there", f"{here.url}/4")
        here.heads.clear()
        assert "more than 3 times" in str(await refused(Egress(HERE), f"{here.url}/0"))
        assert here.paths == ["/0", "/1", "/2", "/3"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.row("SEC-05")
async def test_post_follows_no_redirect(status: int) -> None:
    async with site() as here:
        here.says("/token", status=status, Location="/other?x=secret")
        with pytest.raises(AuthorizationFailed, match="redirects") as raised:
            await Egress(HERE).post(f"{here.url}/token", b"client_secret=s", hop="token")
        assert raised.value.hop == "token"
        assert "secret" not in str(raised.value)
        assert here.paths == ["/token"]


@pytest.mark.parametrize("header", ["Authorization", "authorization", "DPoP", "Cookie", "X-Api-Key"])
@pytest.mark.row("SEC-05")
async def test_get_with_credentials_follows_no_redirect(header: str) -> None:
    async with site() as here:
        here.says("/", status=307, Location="/other")
        with pytest.raises(AuthorizationFailed, match="redirects"):
            await Egress(HERE).get(f"{here.url}/", hop="keys", headers={header: "secret"})
        assert here.paths == ["/"]


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("https://169.254.169.254/latest", "link-local"),
        ("https://10.0.0.1/", "private network"),
        ("//10.0.0.1/", "private network|must use https"),
        ("https://internal.example/", "internal.example is at 10.0.0.7"),
        ("http://internal.example/", "must use https"),
        ("file:///etc/passwd", "unsupported scheme"),
        ("https://u:p@localhost/", "password"),
        ("https://[::1", "malformed URL"),
    ],
)
@pytest.mark.row("SEC-05")
async def test_each_redirect_is_checked(location: str, why: str, sockets: list[object]) -> None:
    names = FixedResolver(["127.0.0.1"], ["10.0.0.7"])
    async with site() as here:
        here.says("/", status=302, Location=location)
        with pytest.raises(AuthorizationFailed, match=why):
            await Egress(HERE, resolve=names).get(f"{here.url}/", hop="keys")
        assert sockets == ["127.0.0.1"]


@pytest.mark.row("SEC-05")
async def test_https_never_redirects_to_http() -> None:
    async with site(server_tls()) as here, site() as there:
        here.says("/", status=302, Location=f"{there.url}/")
        there.says("/", b"plain")
        failed = await refused(Egress(HERE, tls=client_tls()), f"{here.url}/")
        assert "from https to http" in str(failed)
        assert there.heads == []


async def test_redirect_without_location_is_a_response() -> None:
    async with site() as here:
        here.says("/", status=302)
        here.says("/304", status=304, Location="/elsewhere")
        assert (await Egress(HERE).get(f"{here.url}/", hop="keys")).status == 302
        assert (await Egress(HERE).get(f"{here.url}/304", hop="keys")).status == 304


# --- proxies ------------------------------------------------------------------------------------


async def test_proxy_resolves_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = FixedResolver(["10.0.0.1"])
    async with site() as proxy:
        proxy.says("login.example:443", status=403)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        assert "answered 'HTTP/1.1 403 " in str(await refused(Egress(resolve=names), "https://login.example/"))
        assert proxy.heads[0].startswith("CONNECT login.example:443 ")
        assert names.asked == []


@pytest.mark.parametrize("url", ["https://10.0.0.1/", "https://167772161/", "https://localhost./", "http://a.example/"])
async def test_url_checks_apply_behind_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as proxy:
        monkeypatch.setenv("all_proxy", f"http://127.0.0.1:{proxy.port}")
        await refused(Egress(), url)
        assert proxy.heads == []


async def test_local_requests_bypass_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as here:
        here.says("/", b"hi")
        monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
        url = f"http://localhost.:{here.port}/"
        assert (await Egress(HERE, resolve=FixedResolver(["127.0.0.1"])).get(url, hop="keys")).body == b"hi"
