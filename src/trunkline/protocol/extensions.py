"""Protocol extensions: features beyond the specification, used if both sides declare them.

Each side declares its extensions, by name and settings, among its capabilities (from 2026-07-28 on). Without an
extension on both sides, the specification applies.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from trunkline.errors import RegistrationError
from trunkline.protocol.capabilities import Capabilities

__all__ = ["negotiated_settings", "validate_extensions"]

_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME: Final = rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"


def validate_extensions(extensions: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return extensions for declaration. Raise `RegistrationError` for an invalid name or invalid settings."""
    declared: dict[str, Any] = {}
    for name, settings in (extensions or {}).items():
        if not re.fullmatch(_NAME, name):
            raise RegistrationError(f"extension {name!r} needs a prefix and a name, such as 'org.example/search'")
        if not isinstance(cast("Any", settings), Mapping):
            raise RegistrationError(f"the settings of extension {name!r} must be an object; {{}} for none")
        declared[name] = dict(settings)
    return declared


def negotiated_settings(name: str, ours: Capabilities, theirs: Capabilities) -> Mapping[str, Any] | None:
    """Return the peer's settings of an extension that both sides declare; otherwise None."""
    settings: Any = _declared_extensions(theirs).get(name)
    both = isinstance(settings, Mapping) and name in _declared_extensions(ours)
    return cast("Mapping[str, Any]", settings) if both else None


def _declared_extensions(capabilities: Capabilities) -> Mapping[str, Any]:
    declared: Any = capabilities.get("extensions")
    return cast("Mapping[str, Any]", declared) if isinstance(declared, Mapping) else {}
