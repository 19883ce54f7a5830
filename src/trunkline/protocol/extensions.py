"""Extensions: what two sides can do beyond the specification, by a name and settings; used where both have it.

Each side declares its own among its capabilities (from 2026-07-28 on). An extension that only one side has is as if it
were not there: whoever wants more than the specification falls back to it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from trunkline.errors import RegistrationError
from trunkline.protocol.capabilities import Capabilities

__all__ = ["negotiated_settings", "validate_extensions"]

_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def validate_extensions(extensions: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """Extensions as they are declared. Raises `RegistrationError` for a name or settings that none can have."""
    declared: dict[str, Any] = {}
    for name, settings in (extensions or {}).items():
        if not _NAME.fullmatch(name):
            raise RegistrationError(f"extension {name!r} needs a prefix and a name, such as 'org.example/search'")
        if not isinstance(cast("Any", settings), Mapping):
            raise RegistrationError(f"the settings of extension {name!r} must be an object; {{}} for none")
        declared[name] = dict(settings)
    return declared


def negotiated_settings(name: str, ours: Capabilities, theirs: Capabilities) -> Mapping[str, Any] | None:
    """The other side's settings of an extension that both have; None if one of them has not."""
    mine, others = _declared_extensions(ours), _declared_extensions(theirs)
    settings: Any = others.get(name)
    return cast("Mapping[str, Any]", settings) if name in mine and isinstance(settings, Mapping) else None


def _declared_extensions(capabilities: Capabilities) -> Mapping[str, Any]:
    declared: Any = capabilities.get("extensions")
    return cast("Mapping[str, Any]", declared) if isinstance(declared, Mapping) else {}
