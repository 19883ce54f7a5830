"""Settings: their defaults, their bounds, and where they come from."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace
from rich.pretty import pretty_repr

from trunkline import Settings
from trunkline.errors import ConfigError

SIZES = [field.name for field in fields(Settings) if field.name.endswith("_size_limit")]


def test_a19_w16_the_defaults_are_those_of_the_founding_numbers() -> None:
    settings = Settings()
    assert {getattr(settings, name) for name in SIZES} == {16_777_216}
    assert (settings.quick_timeout, settings.work_timeout, settings.person_timeout) == (5, 60, 3600)
    assert settings.initialize_timeout == 30
    assert settings.list_changed_interval == 0.1
    assert settings.max_tool_description == 10_000


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().page_size = 5  # type: ignore[misc]


@pytest.mark.parametrize("name", SIZES)
def test_w17_w19_w24_each_size_limit_has_a_name_and_its_own_bounds(name: str) -> None:
    for size in (1024, 100 * 1024 * 1024):
        changed = Settings(**{name: size})
        assert {other for other in SIZES if getattr(changed, other) != 16_777_216} == {name}
    for size in (512, 1023, 100 * 1024 * 1024 + 1, 200 * 1024 * 1024):
        with pytest.raises(ConfigError, match="1 KiB"):
            Settings(**{name: size})


@pytest.mark.parametrize(
    "bad",
    [
        {"work_timeout": 0},
        {"work_timeout": -1},
        {"max_calls": 0},
        {"on_duplicate": "maybe"},
        {"page_size": 20, "max_page_size": 10},
        {"unsent_high": 20, "unsent_limit": 10},
    ],
    ids=str,
)
def test_w19_what_cannot_work_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**bad)


@pytest.mark.parametrize("name", ["work_timeout", "quick_timeout", "person_timeout", "longest_call", "drain_timeout"])
def test_none_means_off(name: str) -> None:
    assert getattr(Settings(**{name: None}), name) is None


def test_w17_keyword_arguments_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("page_size = 1\nmax_calls = 1\nmax_waiting = 1\non_duplicate = 'warn'\n")
    environ = {"TRUNKLINE_MAX_CALLS": "2", "TRUNKLINE_MAX_WAITING": "2", "OTHER": "x"}
    settings = Settings.load(file, environ=environ, max_waiting=3)
    assert (settings.page_size, settings.max_calls, settings.max_waiting) == (1, 2, 3)
    assert settings.on_duplicate == "warn"


def test_w17_settings_are_read_from_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_PAGE_SIZE", "7")
    assert Settings.load().page_size == 7


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("WORK_TIMEOUT", "1.5", 1.5),
        ("WORK_TIMEOUT", "2", 2.0),
        ("WORK_TIMEOUT", "off", None),
        ("WORK_TIMEOUT", "None", None),
        ("WORK_TIMEOUT", "", None),
        ("MAX_CALLS", "12", 12),
        ("ON_DUPLICATE", "replace", "replace"),
    ],
)
def test_w17_variables_are_read_in_the_type_of_their_setting(name: str, text: str, value: Any) -> None:
    settings = Settings.load(environ={f"TRUNKLINE_{name}": text})
    assert getattr(settings, name.lower()) == value


def test_variables_and_names_that_make_no_sense_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TRUNKLINE_MAX_CALLS must be a number"):
        Settings.load(environ={"TRUNKLINE_MAX_CALLS": "many"})
    with pytest.raises(ConfigError, match=r"unknown setting 'speed'; the settings are .*work_timeout"):
        Settings.load(environ={}, speed="high")
    file = tmp_path / "settings.toml"
    file.write_text("page_size: 1")
    with pytest.raises(ConfigError, match="cannot read settings from"):
        Settings.load(file, environ={})
    with pytest.raises(ConfigError, match="cannot read settings from"):
        Settings.load(tmp_path / "nowhere.toml", environ={})


# --- keys ---------------------------------------------------------------------------------------

KEYS = ("0123456789abcdef0123456789abcdef", "ä" * 16)


def test_keys_are_texts_as_they_stand_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"state_keys = {list(KEYS)!r}", "utf-8")
    assert Settings.load(file, environ={}).state_keys == KEYS
    assert Settings.load(environ={"TRUNKLINE_STATE_KEYS": f" {KEYS[0]}, {KEYS[1]},"}).state_keys == KEYS


def test_keys_are_not_shown() -> None:
    settings = replace(Settings(state_keys=KEYS), page_size=1)
    shown = [repr(settings), str(settings), f"{settings.state_keys}", pretty_repr(settings)]
    shown.append(repr(pickle.loads(pickle.dumps(settings))))
    assert [key for key in KEYS for text in shown if key in text] == []
    assert "".join(settings.state_keys) == "".join(KEYS)


BAD_KEYS = ["tooshort", KEYS[0], ["tooshort"], [KEYS[0], KEYS[1][1:]], [KEYS[0].encode()]]


@pytest.mark.parametrize("keys", BAD_KEYS, ids=str)
def test_keys_that_are_none_are_refused_without_being_shown(keys: Any) -> None:
    said = r"^state_keys(\[[01]\] must be a text of at least 32 bytes| must be a list of keys, not a text)$"
    with pytest.raises(ConfigError, match=said):
        Settings(state_keys=keys)
