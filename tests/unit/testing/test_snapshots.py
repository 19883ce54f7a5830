"""Snapshots of catalogs."""

import json
import sys
from pathlib import Path

import pytest

from trunkline import Server
from trunkline.errors import MisuseError
from trunkline.testing import assert_catalog_unchanged, connect


def make_server(*, changed: bool = False) -> Server:
    server = Server("The Shop", instructions="Sell." if changed else None)

    @server.tool(description="Look up the price." if changed else "Look up a price.")
    async def price(item: str) -> float:
        return 1.0

    if changed:

        @server.tool
        async def buy(item: str) -> None:
            """Buy something."""
    else:

        @server.prompt
        async def offer() -> str:
            """Make an offer."""
            return ""

    server.add_resource("shop://hours", "always")
    return server


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MCP_SNAPSHOT_UPDATE", "")
    return tmp_path / "shop.json"


@pytest.fixture
async def written(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as context:
        context.setenv("MCP_SNAPSHOT_UPDATE", "1")
        await assert_catalog_unchanged(make_server(), path=snapshot)
    return snapshot


async def test_unchanged_catalog_passes(written: Path) -> None:
    await assert_catalog_unchanged(make_server(), path=written)
    async with connect(make_server()) as client:
        await assert_catalog_unchanged(client, path=written)
    catalog = json.loads(written.read_text("utf-8"))
    assert list(catalog) == ["tools", "resources", "resourceTemplates", "prompts"]
    assert '\n      "description": "Look up a price.",\n' in written.read_text("utf-8")


async def test_changed_catalog_fails_with_the_differences(written: Path) -> None:
    with pytest.raises(AssertionError) as raised:
        await assert_catalog_unchanged(make_server(changed=True), path=written)
    told = str(raised.value).splitlines()
    assert told[0] == (
        f"the catalog of 'The Shop' differs from {written}; run pytest with --mcp-snapshot-update if that is intended"
    )
    assert told[2:5] == ["instructions: changed", "tools: 'buy' added, 'price' changed", "prompts: 'offer' removed"]
    assert '-      "description": "Look up a price.",' in told
    assert '+      "description": "Look up the price.",' in told


async def test_layout_of_the_file_does_not_matter(written: Path) -> None:
    written.write_text(json.dumps(json.loads(written.read_text("utf-8"))), "utf-8")
    await assert_catalog_unchanged(make_server(), path=written)


async def test_missing_snapshot_fails(snapshot: Path) -> None:
    with pytest.raises(AssertionError, match=r"has no snapshot .*; run pytest with --mcp-snapshot-update to write it"):
        await assert_catalog_unchanged(make_server(), path=snapshot)
    assert not snapshot.exists()


async def test_snapshot_lies_beside_the_test() -> None:
    beside = Path(__file__).with_name("test_snapshots.the-shop.catalog.json")
    with pytest.raises(AssertionError) as raised:
        await assert_catalog_unchanged(make_server())
    assert str(beside) in str(raised.value)
    with pytest.raises(AssertionError, match=r"test_snapshots\.other\.catalog\.json"):
        await assert_catalog_unchanged(make_server(), name="other")


async def test_option_of_pytest_writes_the_snapshot(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trunkline_pytest

    monkeypatch.setitem(sys.modules, "trunkline_pytest", trunkline_pytest)
    monkeypatch.setattr(trunkline_pytest, "updates_snapshots", True)
    await assert_catalog_unchanged(make_server(), path=snapshot)
    assert snapshot.exists()


def test_other_targets_are_refused() -> None:
    with pytest.raises(MisuseError, match="takes a Server or an open Client"):
        assert_catalog_unchanged("shop.py")  # type: ignore[arg-type]
