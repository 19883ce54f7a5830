"""An authorization server in a child process, and the users who log in there."""

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin

import aiohttp
from tests import official
from tests.limits import PATIENCE

SCRIPT = Path(__file__).with_name("provider.mjs")
MOST_HOPS = 10  # redirects before a browser gives up


class Provider:
    """npm's oidc-provider, which lives until it is closed or this process ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [official.NODE, SCRIPT, official.NPM_FOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        official.BESIDE.add(self._process.pid)
        self.issuer: str = self._heard()["issuer"]

    @property
    def pid(self) -> int:
        """The pid."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it
        official.BESIDE.discard(self._process.pid)

    def set(self, **changes: Any) -> None:
        """Reset to the defaults, except for these: `lifetime`, `clock`, `nonces`, `metadata`, `registration`."""
        self._do("set", **changes)

    def rotate(self, *, forget: bool = False) -> None:
        """Sign with another key from now on; with `forget`, the old key no longer verifies."""
        self._do("rotate", forget=forget)

    def revoke(self, person: str) -> None:
        """Revoke all grants of a user."""
        self._do("revoke", person=person)

    def publish(self, url: str, document: Mapping[str, Any]) -> None:
        """Publish a client's metadata document for the provider."""
        self._do("publish", url=url, document=document)

    def take_requests(self, path: str | None = None, **having: Any) -> list[dict[str, Any]]:
        """The requests since the last call, or those of them that match."""
        requests: list[dict[str, Any]] = self._do("told")
        wanted = having if path is None else {"path": path, **having}
        return [request for request in requests if wanted.items() <= request.items()]

    def _do(self, command: str, **rest: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **rest}) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the provider ended; does `make .peers/node/.ready` succeed?"
        return json.loads(line)


class BrowserUser:
    """A user with a browser, who opens pages and follows redirects up to the one of the program under test."""

    def __init__(self, name: str = "ada", redirect_uri: str = "http://127.0.0.1/callback") -> None:
        self.name = name
        self.redirect_uri = redirect_uri
        self.opened: list[str] = []
        self._cookies = aiohttp.CookieJar(unsafe=True)  # of addresses without a name too

    async def __call__(self, url: str) -> str:
        """Open a page; return the final address."""
        self.opened.append(url)
        async with aiohttp.ClientSession(cookie_jar=self._cookies, headers={"x-person": self.name}) as browser:
            for _ in range(MOST_HOPS):
                if url.startswith(self.redirect_uri):
                    return url
                async with browser.get(url, allow_redirects=False) as page:
                    assert "location" in page.headers, f"{page.status} at {url}: {await page.text()}"
                    url = urljoin(url, page.headers["location"])
        raise AssertionError(f"{MOST_HOPS} redirects and no end: {url}")


async def run(*command: str | Path) -> str:
    """The output of a program that exits with 0."""
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, said.decode()
    return said.decode()
