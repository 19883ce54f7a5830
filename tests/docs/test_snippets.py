"""Every Python example in the README and the manual runs; those that end in `server.run()` as a process, too."""

import ast
import asyncio
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from tests.docs.pages import PAGES, ROOT, blocks, name_of
from tests.limits import PATIENCE

LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#(?P<anchor>[^)]+))?\)")
RUN = "server.run()"
urlpatterns: list[object] = []  # of the Django project
SAVED = re.compile(r"^Saved? (?:this )?as `(\w+\.py)`", re.MULTILINE)


def serves(code: str) -> bool:
    return code.rstrip().endswith(RUN)


def save(page: Path, folder: Path) -> None:
    """Save the programs of a page under the names that it gives them."""
    names = SAVED.findall(page.read_text("utf-8"))
    programs = [code for _, code in blocks(page, "python") if serves(code)]
    for name, code in zip(names, programs, strict=False):
        (folder / name).write_text(code, "utf-8")


@pytest.fixture
def restored_log_levels() -> Iterator[None]:
    """Restore the log levels that a page has changed."""
    logger = logging.getLogger("trunkline")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture
def django_project() -> None:
    """The settings that a Django project has in a separate module."""
    if not django_settings.configured:
        django_settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="only-for-the-manual", LOGGING_CONFIG=None)


@pytest.mark.usefixtures("restored_log_levels", "django_project")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_page_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    namespace: dict[str, object] = {"__name__": "__main__"}
    module = sys.modules["__main__"]
    with asyncio.Runner() as runner:
        for line, code in blocks(page, "python"):
            body = code.rstrip().removesuffix(RUN)
            tree = ast.increment_lineno(ast.parse(body), line)
            compiled = compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if compiled.co_flags & inspect.CO_COROUTINE:
                runner.run(_awaited(compiled, namespace))
            else:
                exec(compiled, namespace)
    assert sys.modules["__main__"] is module


async def _awaited(compiled, namespace: dict[str, object]) -> None:
    await eval(compiled, namespace)


SERVERS = [(page, code) for page in PAGES for _, code in blocks(page, "python") if serves(code)]


@pytest.mark.parametrize(("page", "code"), SERVERS, ids=[name_of(page) for page, _ in SERVERS])
def test_serving_example_is_complete_program(page: Path, code: str, tmp_path: Path) -> None:
    ask = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "reader", "version": "1"},
            },
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    lines = "".join(json.dumps(message) + "\n" for message in ask)
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=lines,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["result"]["protocolVersion"] == "2025-11-25"
    assert second["result"]["tools"]


def test_readme_lists_makefile_commands() -> None:
    said = [line.split("#")[0].strip() for _, code in blocks(ROOT / "README.md", "sh") for line in code.splitlines()]
    assert said == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for command in said:
        target = command.removeprefix("make ")
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the Makefile has no target {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_internal_links_resolve(page: Path) -> None:
    for link in LINK.finditer(page.read_text("utf-8")):
        if "://" not in link["target"]:
            target = page.parent / link["target"]
            assert target.exists(), f"{name_of(page)} links to {link['target']}"
            if link["anchor"]:
                headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
                assert link["anchor"] in {heading.lower().replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_index() -> None:
    indexes = [ROOT / "docs/index.md", ROOT / "docs/decisions/index.md"]
    linked = {
        (index.parent / link["target"]).resolve()
        for index in indexes
        for link in LINK.finditer(index.read_text("utf-8"))
    }
    assert {page.resolve() for page in PAGES[1:]} <= linked | {indexes[0].resolve()}
