"""An authorization server as a process of its own, and the people who log in there."""

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
MOST_HOPS = 10  # before a browser says that a page redirects for ever


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
        """The process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # ends its input, upon which it ends
        official.BESIDE.discard(self._process.pid)

    def set(self, **changes: Any) -> None:
        """Goes back to the defaults, but for these: `lifetime`, `clock`, `nonces`, `metadata`, `registration`."""
        self._do("set", **changes)

    def rotate(self, *, forget: bool = False) -> None:
        """Signs with another key from now on; what was signed before cannot be verified any more if it is to forget."""
        self._do("rotate", forget=forget)

    def revoke(self, person: str) -> None:
        """Takes back all that a person has agreed to."""
        self._do("revoke", person=person)

    def publish(self, url: str, document: Mapping[str, Any]) -> None:
        """Puts a client's metadata where the provider looks for it."""
        self._do("publish", url=url, document=document)

    def told(self, path: str | None = None, **having: Any) -> list[dict[str, Any]]:
        """The requests that came since this was last asked, or those of them that are like this."""
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


class Person:
    """Somebody with a browser, who opens pages and is sent on until the page is one of the program's that asked."""

    def __init__(self, name: str = "ada", redirect_uri: str = "http://127.0.0.1/callback") -> None:
        self.name = name
        self.redirect_uri = redirect_uri
        self.opened: list[str] = []
        self._cookies = aiohttp.CookieJar(unsafe=True)  # of addresses without a name too

    async def __call__(self, url: str) -> str:
        """Opens a page; gives the address that a browser would have shown in the end."""
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
    """What a program writes until it ends, which it does well."""
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, said.decode()
    return said.decode()
