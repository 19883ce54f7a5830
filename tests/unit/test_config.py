"""Settings: their bounds, and where they come from."""

from dataclasses import fields
from pathlib import Path

import pytest

from trunkline.config import Settings
from trunkline.errors import ConfigError

KIB, MIB = 1024, 1024 * 1024
LIMITS = [field.name for field in fields(Settings) if field.name.endswith("_size_limit")]


def test_w16_w17_every_transport_has_a_limit_of_16_mib_under_its_own_name() -> None:
    assert {"tcp_message_size_limit", "http_body_size_limit", "ws_message_size_limit", "sse_event_size_limit"} < {
        *LIMITS
    }
    assert {getattr(Settings(), name) for name in LIMITS} == {16_777_216}


@pytest.mark.parametrize("name", LIMITS)
def test_w17_a_limit_is_taken_from_a_file_the_environment_or_an_argument(name: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"{name} = 1024\n", encoding="utf-8")
    environ = {f"TRUNKLINE_{name.upper()}": "2048"}
    assert getattr(Settings(**{name: 4096}), name) == 4096  # type: ignore[arg-type]
    assert getattr(Settings.load(file, environ={}), name) == 1024
    assert getattr(Settings.load(file, environ=environ), name) == 2048
    assert getattr(Settings.load(file, environ=environ, **{name: 4096}), name) == 4096


@pytest.mark.parametrize("name", LIMITS)
def test_w19_a_limit_is_from_1_kib_to_100_mib(name: str) -> None:
    for size in (1 * KIB, 100 * MIB):
        assert getattr(Settings(**{name: size}), name) == size  # type: ignore[arg-type]
    for size in (512, 1 * KIB - 1, 100 * MIB + 1, 200 * MIB):
        with pytest.raises(ConfigError, match=name):
            Settings(**{name: size})  # type: ignore[arg-type]
