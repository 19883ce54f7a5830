"""`trunkline pins`."""

import json
from pathlib import Path

import pytest
from tests.unit.cli.commands import run

from trunkline import PinStore
from trunkline.protocol.types import Tool


def tool(name: str, description: str) -> Tool:
    return Tool(name=name, description=description, input_schema={})


@pytest.fixture
def store(tmp_path: Path) -> PinStore:
    """A store with an unchanged, a changed and a new tool."""
    found = PinStore(tmp_path / "pins.json")
    found.examine("weather", [tool("now", "Now."), tool("forecast", "Returns the forecast.")])
    found.examine(
        "weather", [tool("now", "Now."), tool("forecast", "Reads \x1b[31mkeys.\u202e"), tool("more", "More.")]
    )
    return found


def test_list_shows_states(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "pins", "list", "--store", str(store.path))
    rows = [line.split(maxsplit=3) for line in out.splitlines()]
    assert code == 0
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("weather", "now", "pinned"),
        ("weather", "forecast", "changed, blocked"),
        ("weather", "more", "new, blocked"),
    ]


def test_list_of_one_tool_and_as_json(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "pins", "list", "weather", "now", "--store", str(store.path))
    assert len(out.splitlines()) == 1
    _, out, _ = run(capsys, "pins", "list", "weather", "--json", "--store", str(store.path))
    assert json.loads(out)["weather"]["pins"]["now"]["definition"]["description"] == "Now."
    code, _, err = run(capsys, "pins", "list", "mail", "--store", str(store.path))
    assert (code, "no pins of server 'mail'" in err) == (2, True)


def test_diff_shows_changes_escaped(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "pins", "diff", "--store", str(store.path))
    assert code == 1
    assert "- Returns the forecast." in out
    assert r"+ Reads \x1b[31mkeys.\u202e" in out
    assert "the server has added it" in out
    assert "2 blocked" in err
    _, out, _ = run(capsys, "pins", "diff", "weather", "more", "--store", str(store.path))
    assert "forecast" not in out


def test_digest_of_diff_approves(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "pins", "diff", "weather", "forecast", "--store", str(store.path))
    digest = out.splitlines()[0].split()[2].rstrip(":")
    code, out, _ = run(capsys, "pins", "approve", "weather", "forecast", "--digest", digest, "--store", str(store.path))
    assert (code, out) == (0, "weather forecast: approved\n")
    assert [*store.servers()["weather"].waiting] == ["more"]


def test_approve_takes_all_tools_of_a_server(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "pins", "approve", "weather", "--store", str(store.path))
    assert (code, out) == (0, "weather forecast: approved\nweather more: approved\n")
    assert run(capsys, "pins", "diff", "--store", str(store.path))[0] == 0
    assert "no tool of weather is blocked" in run(capsys, "pins", "approve", "weather", "--store", str(store.path))[2]


def test_digest_without_a_tool_is_wrong_usage(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "pins", "approve", "weather", "--digest", "1", "--store", str(store.path))[0] == 2


def test_remove_of_a_tool_and_of_a_server(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "pins", "remove", "weather", "now", "--store", str(store.path))
    assert (code, out) == (0, "weather now: removed\n")
    assert "now" not in store.servers()["weather"].pins
    assert run(capsys, "pins", "remove", "weather", "--store", str(store.path))[1] == "weather: removed\n"
    assert "no pins in" in run(capsys, "pins", "list", "--store", str(store.path))[2]


def test_damaged_store_fails_with_the_remedy(store: PinStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.path.write_text("{")
    code, _, err = run(capsys, "pins", "list", "--store", str(store.path))
    assert (code, "restore the file from a backup" in err) == (1, True)


def test_command_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "pins")
    assert (code, "approve" in err) == (2, True)
