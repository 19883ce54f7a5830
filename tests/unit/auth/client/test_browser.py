"""Opening pages: by argv, and only allowed pages."""

import asyncio
import os
import subprocess
import sys
from os import pathsep
from pathlib import Path

import pytest
from tests.contract.connections import until
from tests.limits import PATIENCE

from trunkline.auth.client.browser import browser_command, check_login_url, open_page
from trunkline.errors import AuthorizationFailed

HOSTILE = [
    "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "vbscript:x", "--help", "-a", "", "ftp://a.example/",
    "http://login.example/", "http://10.0.0.1/", "https://a.example/\nid", "https://a.example/\x00", "https://a.example/ x",
    "https://a.example/\x1b[2J", "https://u:p@a.example/", "https:///x", " https://a.example/", "HTTPS:a.example",
    "https://a.example/\\..\\calc.exe", "\\\\a.example\\share", "ms-calculator://", "https://a.example/" + "x" * 9000,
]  # fmt: skip
SHELLISH = "https://a.example/?a=$(touch%20x)&b=`id`;c='\"|d>e<f*{g}~!%PATH%^&state=1#h"


def recorder(folder: Path, *, status: int = 0) -> Path:
    """A browser that records its arguments."""
    script = folder / "browser"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"with open({str(folder / 'new')!r}, 'w') as file: file.write('\\0'.join(sys.argv[1:]))\n"
        f"os.rename({str(folder / 'new')!r}, {str(folder / 'argv')!r})\nprint('noise')\nsys.exit({status})\n"
    )
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("url", HOSTILE)
@pytest.mark.row("SEC-06")
async def test_non_web_url_is_not_opened(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", str(recorder(tmp_path)))
    with pytest.raises(AuthorizationFailed) as raised:
        await open_page(url)
    assert raised.value.hop == "authorization"
    assert raised.value.clause
    assert not (tmp_path / "argv").exists()


@pytest.mark.row("SEC-06")
def test_https_and_local_pages_may_open() -> None:
    for url in ("https://a.example/?x=1", "https://10.0.0.1/", "http://127.0.0.1:9/", "http://localhost/", SHELLISH):
        assert check_login_url(url) == url


@pytest.mark.row("SEC-06")
async def test_url_is_one_argument_without_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROWSER", str(recorder(tmp_path)))
    before = set(tmp_path.iterdir())
    assert await open_page(SHELLISH) is None
    assert (tmp_path / "argv").read_text() == SHELLISH
    assert set(tmp_path.iterdir()) - before == {tmp_path / "argv"}


def test_environment_names_browser_and_arguments() -> None:
    python, url = sys.executable, "https://a.example/"
    assert browser_command(url, python) == [python, url]
    assert browser_command(url, f"{python} --new-window") == [python, "--new-window", url]
    assert browser_command(url, f"{python} %s --kiosk") == [python, url, "--kiosk"]
    assert browser_command(url, f"/no/such/program{pathsep}{python} -x{pathsep}other") == [python, "-x", url]


@pytest.mark.parametrize(
    "more", ["; id", "&& id", "| id", "$(id)", "`id`", "> x", "'%s'", '"%s"', "*", "\n id", "${A}", "#"]
)
@pytest.mark.row("SEC-06")
def test_shell_command_is_no_browser(more: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser_command("https://a.example/", f"{sys.executable} {more}", "linux") is None


def test_each_system_has_an_opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://a.example/"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SYSTEMROOT", "D:\\Win")
    assert browser_command(url, "", "linux") is None
    recorder(tmp_path).rename(tmp_path / "xdg-open")
    assert browser_command(url, "", "linux") == [str(tmp_path / "xdg-open"), url]
    assert browser_command(url, "", "darwin") == ["/usr/bin/open", url]
    windows = ["D:\\Win\\System32\\rundll32.exe", "url.dll,FileProtocolHandler", url]
    assert browser_command(url, "", "win32") == windows


async def test_missing_browser_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROWSER", "")
    assert "no browser was found" in str(await open_page("https://a.example/"))


async def test_failing_browser_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", str(recorder(tmp_path, status=3)))
    assert "ended with status 3" in str(await open_page("https://a.example/"))
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(broken))
    assert "cannot be started" in str(await open_page("https://a.example/"))


LEAVING = """
import asyncio, os, sys
from trunkline.auth.client.browser import open_page

async def main():
    opening = asyncio.ensure_future(open_page("https://a.example/"))
    while not os.path.exists(sys.argv[1]):
        await asyncio.sleep(0.01)
    opening.cancel()

asyncio.run(main())
"""


async def test_running_browser_is_not_awaited_or_closed(tmp_path: Path) -> None:
    script, pid = tmp_path / "browser", tmp_path / "pid"
    script.write_text(f"#!/bin/sh\necho $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 60\n")
    script.chmod(0o755)
    command = [sys.executable, "-W", "error", "-c", LEAVING, str(pid)]
    done = subprocess.run(
        command, check=False, env={**os.environ, "BROWSER": str(script)}, capture_output=True, timeout=PATIENCE
    )
    browser = int(pid.read_text())
    subprocess.run(["kill", str(browser)], check=True)  # which fails if it is gone
    assert (done.returncode, done.stderr) == (0, b"")


async def test_browser_leaves_no_zombie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", str(recorder(tmp_path)))
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    opening = asyncio.ensure_future(open_page("https://a.example/"))
    await until((tmp_path / "argv").exists)
    opening.cancel()
    await until(lambda: children.read_text() == before)
