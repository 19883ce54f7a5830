"""The public API: recorded, and compared with the record."""

import pytest
from tools import public_api
from tools.public_api import RECORDED, find_breaks, from_text, read_package, to_text


@pytest.mark.row("Z10", "PH66")
def test_public_api_is_the_recorded_one() -> None:
    recorded, current = from_text(RECORDED.read_text("utf-8")), read_package()
    assert find_breaks(recorded, current) == []
    assert current == recorded, "run `make docs`"


def test_record_covers_every_kind_of_name() -> None:
    current = read_package()
    assert current["trunkline.Server.pause"] == "def (*, wait=...)"
    assert current["trunkline.Client.call_tool"].startswith("async def (name, ")
    assert current["trunkline.Server.connections"] == "attribute"
    assert "page_size=..." in current["trunkline.Settings"]
    assert current["trunkline.errors.RefusalCode.POLICY_VIOLATION"] == "value 1001"
    assert current["trunkline.errors.ToolNotFound.kind"] == "value 'tool_not_found'"
    assert current["trunkline.errors.ToolError"] == "is trunkline.ToolError"
    assert current["trunkline.errors.StoreError"] == "class (*args)"
    assert current["trunkline.facts.Observer"] == "protocol"
    assert current["trunkline.server.options.ToolOptions.timeout"] == "option"
    assert from_text(to_text(current)) == current


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def (a)", "def (a, b=...)"),
        ("def (a)", "def (a, *, b=...)"),
        ("def (a)", "def (a, *more, **options)"),
        ("def (a)", "def (a=...)"),
        ("def (a, /)", "def (b, /)"),
        ("def (a, /)", "def (b)"),
        ("def (*, a)", "def (a)"),
        ("def (*, a, b=...)", "def (*, b=..., a)"),
        ("class (a)", "class (a, b=...)"),
    ],
)
@pytest.mark.row("Z10")
def test_wider_signature_breaks_nothing(before: str, after: str) -> None:
    assert find_breaks({"f": before}, {"f": after, "g": "def ()"}) == []


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("def (a)", None, "f is gone"),
        ("def (a)", "def ()", "'a' is no longer accepted by position"),
        ("def (a, b)", "def (b, a)", "'a' has another position or name"),
        ("def (a)", "def (b)", "'a' has another position or name"),
        ("def (a)", "def (a, /)", "'a' is gone"),
        ("def (a=...)", "def (a)", "'a' is required now"),
        ("def (a)", "def (a, b)", "'b' is required now"),
        ("def (a)", "def (a, *, b)", "'b' is required now"),
        ("def (*, a=...)", "def (**options)", "'a' is gone"),
        ("def (a, /, b)", "def (*all, b)", "'b' has another position or name"),
        ("def (a=..., /)", "def (b, /)", "'b' is required now"),
        ("def (a)", "def (*, a)", "'a' is no longer accepted by position"),
        ("def (**options)", "def ()", "further arguments are no longer accepted"),
        ("def (*args)", "def ()", "further arguments are no longer accepted"),
        ("def ()", "async def ()", "was `def ()`, is `async def ()`"),
        ("attribute", "def ()", "was `attribute`, is `def ()`"),
        ("value 1001", "value 1002", "was `value 1001`, is `value 1002`"),
    ],
)
@pytest.mark.row("Z10")
def test_narrower_signature_is_a_break(before: str, after: str | None, why: str) -> None:
    [found] = find_breaks({"f": before}, {} if after is None else {"f": after})
    assert why in found


@pytest.mark.row("Z10")
def test_break_is_recorded_only_if_it_is_accepted(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "public_api.txt"
    file.write_text("trunkline.gone: def ()\n", "utf-8")
    monkeypatch.setattr(public_api, "RECORDED", file)
    assert public_api.main([]) == public_api.main(["--check"]) == 1
    assert "trunkline.gone is gone" in capsys.readouterr().out
    assert file.read_text("utf-8") == "trunkline.gone: def ()\n"
    assert public_api.main(["--accept-breaks"]) == 0
    assert from_text(file.read_text("utf-8")) == read_package()
    assert public_api.main(["--check"]) == 0
    file.write_text(file.read_text("utf-8").partition("\n")[2], "utf-8")  # a name that is not recorded yet
    assert public_api.main(["--check"]) == 1
    assert public_api.main([]) == public_api.main(["--check"]) == 0
