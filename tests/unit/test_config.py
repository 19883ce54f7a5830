"""Settings: defaults, bounds and sources."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace
from rich.pretty import pretty_repr

from trunkline import Settings
from trunkline.config import read_settings
from trunkline.errors import ConfigError

SIZES = [field.name for field in fields(Settings) if field.name.endswith("_size_limit")]


@pytest.mark.row("A19", "W16")
def test_defaults_match_founding_numbers() -> None:
    settings = Settings()
    assert {getattr(settings, name) for name in SIZES} == {16_777_216}
    assert (settings.quick_timeout, settings.work_timeout, settings.person_timeout) == (5, 60, 3600)
    assert settings.initialize_timeout == 30
    assert settings.list_changed_interval == 0.1
    assert settings.max_tool_description == 10_000


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().page_size = 5  # type: ignore[misc]


@pytest.mark.row("W17", "W19", "W24")
@pytest.mark.parametrize("name", SIZES)
def test_each_size_limit_has_a_name_and_its_own_bounds(name: str) -> None:
    for size in (1024, 100 * 1024 * 1024):
        changed = Settings(**{name: size})
        assert {other for other in SIZES if getattr(changed, other) != 16_777_216} == {name}
    for size in (512, 1023, 100 * 1024 * 1024 + 1, 200 * 1024 * 1024):
        with pytest.raises(ConfigError, match="1 KiB"):
            Settings(**{name: size})


@pytest.mark.row("W19")
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
def test_invalid_combinations_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**bad)


@pytest.mark.parametrize("name", ["work_timeout", "quick_timeout", "person_timeout", "longest_call", "drain_timeout"])
def test_none_means_off(name: str) -> None:
    assert getattr(Settings(**{name: None}), name) is None


@pytest.mark.row("W17")
def test_keywords_override_environment_which_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("page_size = 1\nmax_calls = 1\nmax_waiting = 1\non_duplicate = 'warn'\n")
    environ = {"TRUNKLINE_MAX_CALLS": "2", "TRUNKLINE_MAX_WAITING": "2", "OTHER": "x"}
    settings = Settings.load(file, environ=environ, max_waiting=3)
    assert (settings.page_size, settings.max_calls, settings.max_waiting) == (1, 2, 3)
    assert settings.on_duplicate == "warn"


@pytest.mark.row("W17")
def test_settings_are_read_from_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_PAGE_SIZE", "7")
    assert Settings.load().page_size == 7


@pytest.mark.row("W17")
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
def test_variables_are_parsed_by_setting_type(name: str, text: str, value: Any) -> None:
    settings = Settings.load(environ={f"TRUNKLINE_{name}": text})
    assert getattr(settings, name.lower()) == value


def test_unknown_names_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^TRUNKLINE_MAX_CALLS must be a whole number above 0, not 'many'$"):
        Settings.load(environ={"TRUNKLINE_MAX_CALLS": "many"})
    with pytest.raises(ConfigError, match=r"unknown setting 'speed'; the settings are .*work_timeout"):
        Settings.load(environ={}, speed="high")
    file = tmp_path / "settings.toml"
    file.write_text("page_size: 1")
    with pytest.raises(ConfigError, match="cannot read settings from"):
        Settings.load(file, environ={})
    with pytest.raises(ConfigError, match="cannot read settings from"):
        Settings.load(tmp_path / "nowhere.toml", environ={})


WRONG = [
    ("max_calls", "5", "a whole number above 0", "'5'"),
    ("max_calls", 5.0, "a whole number above 0", "5.0"),
    ("max_calls", True, "a whole number above 0", "True"),
    ("max_calls", None, "a whole number above 0", "None"),
    ("max_calls", [5], "a whole number above 0", r"\[5\]"),
    ("max_text", "5", "a whole number above 0 or None", "'5'"),
    ("max_retries", -1, "a whole number of 0 or more or None", "-1"),
    ("work_timeout", "60", "a number above 0 or None", "'60'"),
    ("work_timeout", float("nan"), "a number above 0 or None", "nan"),
    ("keepalive_timeout", None, "a number above 0", "None"),
    ("backoff_jitter", -0.5, "a number of 0 or more", "-0.5"),
    ("http_sessions", "yes", "True or False", "'yes'"),
    ("http_sessions", 1, "True or False", "1"),
    ("allowed_hosts", "example.org", "a list of texts", "'example.org'"),
    ("allowed_hosts", 5, "a list of texts", "5"),
    ("allowed_hosts", ["example.org", 5], "a list of texts", r"\('example.org', 5\)"),
    ("crash_folder", 5, "the path of a folder, as text or None", "5"),
    ("crash_folder", "", "the path of a folder, as text or None", "''"),
    ("on_duplicate", ["error"], "one of error, replace, warn", r"\['error'\]"),
    ("stdio_message_size_limit", "1024", r"a whole number from 1024 \(1 KiB\) to 104857600 \(100 MiB\)", "'1024'"),
]


@pytest.mark.parametrize(("name", "value", "allowed", "given"), WRONG, ids=lambda part: str(part)[:20])
def test_setting_of_a_wrong_type_is_refused_with_what_is_allowed(
    name: str, value: Any, allowed: str, given: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be {allowed}, not {given}$"):
        Settings(**{name: value})


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_refuses_unknown_type_by_name(name: str) -> None:
    for value in (object(), {"a": 1}, b"x", -1j):
        with pytest.raises(ConfigError, match=f"^{name} must be "):
            Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("max_calls", "0", "a whole number above 0"),
        ("max_calls", "1.5", "a whole number above 0"),
        ("max_calls", "off", "a whole number above 0"),
        ("max_text", "much", "a whole number above 0 or off"),
        ("work_timeout", "inf", "a number above 0 or off"),
        ("http_sessions", "maybe", "one of 1, true, yes, on, 0, false, no, off"),
        ("on_duplicate", "maybe", "one of error, replace, warn"),
        ("sse_event_size_limit", "7", r"a whole number from 1024 \(1 KiB\) to 104857600 \(100 MiB\)"),
    ],
)
def test_variable_of_a_wrong_type_is_refused_with_what_is_allowed(name: str, text: str, allowed: str) -> None:
    variable = f"TRUNKLINE_{name.upper()}"
    with pytest.raises(ConfigError, match=f"^{variable} must be {allowed}, not '{text}'$"):
        Settings.load(environ={variable: text})


def test_wrong_value_in_a_file_is_refused_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_calls = '5'")
    with pytest.raises(ConfigError, match=f"^{file}: max_calls must be a whole number above 0, not '5'$"):
        Settings.load(file, environ={})
    file.write_text("max_cals = 5")
    with pytest.raises(ConfigError, match=f"^unknown setting 'max_cals' in {file}. Did you mean \"max_calls\"[?]$"):
        Settings.load(file, environ={})


def test_lists_of_settings_become_tuples() -> None:
    assert Settings(allowed_hosts=["a", "b"]).allowed_hosts == ("a", "b")  # type: ignore[arg-type]


def test_misspelt_variable_warns_with_suggestion() -> None:
    said = "TRUNKLINE_MAX_CALS is not a setting and is ignored. Did you mean TRUNKLINE_MAX_CALLS?"
    with pytest.warns(UserWarning, match=re.escape(said)) as told:
        settings = Settings.load(environ={"TRUNKLINE_MAX_CALS": "2"})
    assert settings == Settings()
    assert [warning.filename for warning in told] == [__file__]


def test_unknown_variable_warns_without_suggestion() -> None:
    with pytest.warns(UserWarning, match="TRUNKLINE_COLOUR is not a setting and is ignored$"):
        Settings.load(environ={"TRUNKLINE_COLOUR": "red"})


def test_kubernetes_service_variables_do_not_warn() -> None:
    links = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8000_TCP", "PORT_8000_TCP_ADDR")
    environ = {f"TRUNKLINE_{link}": "x" for link in links} | {"TRUNKLINE_API_SERVICE_HOST": "x"}
    assert Settings.load(environ=environ) == Settings()  # a warning would be an error here


def test_misspelt_keyword_is_refused_with_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"""^unknown setting 'max_cals'[.] Did you mean "max_calls"[?]$"""):
        Settings.load(environ={}, max_cals=5)


def test_repr_shows_non_default_settings() -> None:
    assert repr(Settings()) == "Settings()"
    shown = repr(Settings(max_calls=5, work_timeout=None, state_keys=KEYS))
    assert shown == "Settings(work_timeout=None, state_keys=('…', '…'), max_calls=5)"


# --- keys ---------------------------------------------------------------------------------------

KEYS = ("0123456789abcdef0123456789abcdef", "ä" * 16)


def test_keys_are_loaded_from_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"state_keys = {list(KEYS)!r}", "utf-8")
    assert Settings.load(file, environ={}).state_keys == KEYS
    assert Settings.load(environ={"TRUNKLINE_STATE_KEYS": f" {KEYS[0]}, {KEYS[1]},"}).state_keys == KEYS


def test_keys_are_hidden_in_repr() -> None:
    settings = replace(Settings(state_keys=KEYS), page_size=1)
    shown = [repr(settings), str(settings), f"{settings.state_keys}", pretty_repr(settings)]
    shown.append(repr(pickle.loads(pickle.dumps(settings))))
    assert [key for key in KEYS for text in shown if key in text] == []
    assert "".join(settings.state_keys) == "".join(KEYS)


BAD_KEYS = ["tooshort", KEYS[0], ["tooshort"], [KEYS[0], KEYS[1][1:]], [KEYS[0].encode()]]


@pytest.mark.parametrize("keys", BAD_KEYS, ids=str)
def test_invalid_keys_are_refused_without_showing_them(keys: Any) -> None:
    said = r"^state_keys(\[[01]\] must be a string of at least 32 bytes| must be a list of keys, not a string)$"
    with pytest.raises(ConfigError, match=said):
        Settings(state_keys=keys)


TOKEN = "scraper-token-16"


def test_metrics_token_is_hidden_in_repr() -> None:
    for settings in (
        Settings(metrics_token=TOKEN),
        Settings.load(environ={"TRUNKLINE_METRICS_TOKEN": TOKEN}),
        replace(Settings(metrics_token=TOKEN), page_size=1),
        pickle.loads(pickle.dumps(Settings(metrics_token=TOKEN))),
    ):
        assert settings.metrics_token == TOKEN
        assert TOKEN not in repr(settings) + str(settings) + pretty_repr(settings)
    assert Settings.load(environ={"TRUNKLINE_METRICS_TOKEN": "off"}).metrics_token is None


@pytest.mark.parametrize("token", [TOKEN[1:], f"{TOKEN} ", f"{TOKEN}\n", f"{TOKEN}ä", TOKEN.encode(), ""], ids=repr)
def test_invalid_metrics_token_is_refused_without_showing_it(token: Any) -> None:
    said = "must be a text of at least 16 characters that a header can have, without spaces$"
    with pytest.raises(ConfigError, match=f"^metrics_token {said}"):
        Settings(metrics_token=token)
    if isinstance(token, str) and token:
        with pytest.raises(ConfigError, match=f"^TRUNKLINE_METRICS_TOKEN {said}"):
            Settings.load(environ={"TRUNKLINE_METRICS_TOKEN": token})


def test_source_of_each_setting_is_known(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("page_size = 1\nmax_calls = 1\nmax_waiting = 1\n")
    found = read_settings(file, environ={"TRUNKLINE_MAX_CALLS": "2"}, flags={"max_waiting": "3"})
    assert found == {
        "page_size": (1, str(file)),
        "max_calls": (2, "TRUNKLINE_MAX_CALLS"),
        "max_waiting": (3, "--max-waiting"),
    }


@pytest.mark.parametrize(
    ("flags", "why"),
    [({"max_wating": "1"}, "unknown setting 'max_wating'"), ({"max_calls": "x"}, "--max-calls must be a whole number")],
)
def test_wrong_flag_is_explained(flags: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_settings(environ={}, flags=flags)
