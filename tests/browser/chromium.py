"""A real browser, for tests to open pages in."""

import asyncio
import fcntl
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.limits import PATIENCE
from tests.official import NODE, NPM_FOLDER, ROOT

SCRIPT = Path(__file__).with_name("browser.mjs")
PACKAGE = NPM_FOLDER / "node_modules/@sparticuz/chromium/package.json"


class PageError(Exception):
    """An action in a page has failed; the text is the browser's."""


class Browser:
    """Chromium, in a child process. Every name under .example resolves to this machine."""

    def __init__(self) -> None:
        assert PACKAGE.exists(), f"the browser is missing: `make {NPM_FOLDER.relative_to(ROOT)}/.ready` installs it"
        home = ROOT / ".cache" / f"chromium-{json.loads(PACKAGE.read_text())['version']}"
        home.parent.mkdir(exist_ok=True)
        with home.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is unpacked and has started
            self._process = subprocess.Popen(
                [NODE, SCRIPT, NPM_FOLDER, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self.port = self._read()["port"]

    async def open_page(self, origin: str, call: str, *arguments: Any, rebound: bool = False) -> Any:
        """Open a page of an origin, call a function of page.mjs there, and return its result."""
        question = {"address": f"{origin}/", "rebound": rebound, "call": call, "arguments": arguments}
        answer = await asyncio.to_thread(self._ask, question)
        if "error" in answer:
            raise PageError(answer["error"])
        return answer["result"]

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the browser has ended"
        return json.loads(line)

    def close(self) -> None:
        """Close the browser."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
