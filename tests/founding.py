"""Capabilities of a client that follows the founding documents, which declares the features of servers that it uses."""

from typing import Any, Final

FEATURES: Final[dict[str, Any]] = {
    feature: {} for feature in ("resources", "tools", "prompts", "logging", "completions", "tasks")
}

REQUESTED: Final[dict[str, Any]] = {**FEATURES, "experimental": {"trunkline/erlmcp": {}}}
"""The same for a client that requests the profile, since the server has none by default."""
