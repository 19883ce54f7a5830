"""Relay of resource updates from a mounted server to its parent."""

from collections.abc import Callable
from typing import cast

from trunkline.protocol import types as t
from trunkline.wire import codec
from trunkline.wire.messages import Encoded

__all__ = ["UpdateRelay"]


class UpdateRelay:
    """Subscriber to a mounted server on behalf of its parent: passes updates on to the subscribers of the parent."""

    def __init__(self, send: Callable[[str, bytes | None], None]) -> None:
        self._send = send

    def broadcast(self, name: str, frame: Encoded, params: "t.Params") -> None:  # noqa: ARG002 - part of a subscriber
        """Pass on an update."""
        updated = cast("t.ResourceUpdatedParams", params)
        self._send(updated.uri, None if updated.meta is None else codec.to_json(updated.meta))
