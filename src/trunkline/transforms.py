"""Transforms: make new tools of existing ones, at registration (`transform=`) or on `Server.mount`."""

from trunkline.registry.transforms import (
    Transform,
    describe,
    hide_argument,
    map_result,
    preset_argument,
    rename,
    rename_argument,
    select_output,
)

__all__ = [
    "Transform",
    "describe",
    "hide_argument",
    "map_result",
    "preset_argument",
    "rename",
    "rename_argument",
    "select_output",
]
