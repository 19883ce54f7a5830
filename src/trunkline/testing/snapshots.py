"""Snapshots of a server's catalog: its tools, resources, templates and prompts as clients see them, in a file.

    async def test_catalog():
        await assert_catalog_unchanged(server)

Hosts show the catalog to models, so a change of a name, a description or a schema is a change of behaviour. The file is
JSON with one entry after the other, in the order of their names, so that a review shows what changed.
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, cast

from trunkline.cli.catalog import fetch_catalog
from trunkline.client.client import Client
from trunkline.errors import MisuseError
from trunkline.errors.options import describe_value
from trunkline.server.server import Server
from trunkline.testing.in_process import connect
from trunkline.wire import codec

__all__ = ["assert_catalog_unchanged"]

_UPDATE: Final = "--mcp-snapshot-update"
_UPDATE_VARIABLE: Final = "MCP_SNAPSHOT_UPDATE"  # for other test runners than pytest
_KEYS: Final = {"tools": "name", "resources": "uri", "resourceTemplates": "uriTemplate", "prompts": "name"}

_read: Callable[[bytes], Any] = codec.decoder(cast("type[Any]", object))


def assert_catalog_unchanged(
    target: Server | Client, *, name: str | None = None, path: str | os.PathLike[str] | None = None
) -> Coroutine[Any, Any, None]:
    """Compare the catalog of a server, or the catalog that an open client sees, with its snapshot. Await the result.

    The snapshot is `test_shop.<name>.catalog.json` beside `test_shop.py`; `name` defaults to the server's name, and
    `path` names another file. Raises `AssertionError` with the differences, also if there is no snapshot.
    `pytest --mcp-snapshot-update`, or the environment variable `MCP_SNAPSHOT_UPDATE=1`, writes it.
    """
    if not isinstance(cast("Any", target), Server | Client):
        raise MisuseError(f"assert_catalog_unchanged takes a Server or an open Client, not {describe_value(target)}")
    test = Path(sys._getframe(1).f_code.co_filename)  # pyright: ignore[reportPrivateUsage]
    return _compare(target, name, test, None if path is None else Path(path))


async def _compare(target: Server | Client, name: str | None, test: Path, path: Path | None) -> None:
    if isinstance(target, Server):
        async with connect(target) as client:
            found = await _describe_catalog(client)
        name = name or target.name
    else:
        found = await _describe_catalog(target)
        name = name or ("server" if target.server_info is None else target.server_info.name)
    file = path or test.with_name(f"{test.stem}.{_slug(name)}.catalog.json")
    now = codec.to_readable_json(found).decode() + "\n"
    if _updates():
        file.write_text(now, "utf-8")
        return
    if not file.exists():
        raise AssertionError(f"the catalog of {name!r} has no snapshot {file}; run pytest with {_UPDATE} to write it")
    before = file.read_text("utf-8")
    if before != now and (told := _explain(_read(before.encode()), found, before, now)):
        raise AssertionError(
            f"the catalog of {name!r} differs from {file}; run pytest with {_UPDATE} if that is intended\n\n{told}"
        )


def _updates() -> bool:
    plugin = sys.modules.get("trunkline_pytest")
    return bool(getattr(plugin, "updates_snapshots", False) or os.environ.get(_UPDATE_VARIABLE))


async def _describe_catalog(client: Client) -> dict[str, Any]:
    """Return the catalog as plain values, each list in the order of its keys."""
    catalog = await fetch_catalog(client)
    lists = zip(_KEYS, (catalog.tools, catalog.resources, catalog.templates, catalog.prompts), strict=True)
    described: dict[str, Any] = {} if client.instructions is None else {"instructions": client.instructions}
    for kind, entries in lists:
        plain: list[dict[str, Any]] = _read(codec.to_json(entries))
        described[kind] = sorted(plain, key=lambda entry: str(entry[_KEYS[kind]]))
    return described


def _slug(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name).strip("-").lower() or "server"


def _explain(before: Mapping[str, Any], now: Mapping[str, Any], before_text: str, now_text: str) -> str:
    """Return the names of what changed, and the lines; an empty text if only the layout of the file differs."""
    if before == now:
        return ""
    changes: list[str] = []
    if before.get("instructions") != now.get("instructions"):
        changes.append("instructions: changed")
    for kind, key in _KEYS.items():
        old, new = ({entry[key]: entry for entry in catalog.get(kind, ())} for catalog in (before, now))
        verbs = {name: _verb(old.get(name), new.get(name)) for name in sorted({*old, *new})}
        told = [f"{name!r} {verb}" for name, verb in verbs.items() if verb]
        if told:
            changes.append(f"{kind}: {', '.join(told)}")
    lines = difflib.unified_diff(before_text.splitlines(), now_text.splitlines(), "snapshot", "server", lineterm="")
    return "\n".join([*changes, "", *lines])


def _verb(old: Any, new: Any) -> str:
    if old == new:
        return ""
    return "added" if old is None else "removed" if new is None else "changed"
