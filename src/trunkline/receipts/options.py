"""Options of a server's receipts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from trunkline.errors import ConfigError
from trunkline.errors.options import INTEGER, NUMBER, POSITIVE, OptionKind, check_options, instance_of

__all__ = ["OnFailure", "Receipts"]

OnFailure = Literal["continue", "refuse"]
"""What a server does while receipts cannot be written: go on without them, or refuse calls."""

_PATH: Final = instance_of("a path", str, os.PathLike)
_KINDS: Final[Mapping[str, OptionKind]] = {
    "folder": _PATH,
    "key": _PATH,
    "on_failure": OptionKind("'continue' or 'refuse'", lambda value: value in {"continue", "refuse"}),
    "fsync": NUMBER,
    "checkpoint_interval": POSITIVE,
    **dict.fromkeys(("checkpoint_calls", "segment_bytes", "max_queue"), INTEGER),
}


class Receipts:
    """Receipts of calls in a folder: `Server("notes", receipts=Receipts("receipts", key="receipts.key"))`."""

    __slots__ = (
        *("checkpoint_calls", "checkpoint_interval", "folder", "fsync", "key", "max_queue", "on_failure"),
        "segment_bytes",
    )

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        key: str | os.PathLike[str] | None = None,
        on_failure: OnFailure = "continue",
        fsync: float | None = 1.0,
        checkpoint_calls: int = 1000,
        checkpoint_interval: float = 10.0,
        segment_bytes: int = 64 * 1024 * 1024,
        max_queue: int = 10_000,
    ) -> None:
        """The server and its workers write to `folder`, which is created if necessary. `key` is the file of the private
        key that signs checkpoints; without one there are no signatures. `on_failure` says what happens while receipts
        cannot be written: "continue" runs calls and counts the missing receipts, "refuse" refuses calls. `fsync` has
        the seconds between two: 0 for one after every batch, None for none. A checkpoint is written after
        `checkpoint_calls` calls or `checkpoint_interval` seconds, and a new file begins after `segment_bytes`. Up to
        `max_queue` receipts wait to be written."""
        options = {
            "folder": folder,
            "key": key,
            "on_failure": on_failure,
            "fsync": fsync,
            "checkpoint_calls": checkpoint_calls,
            "checkpoint_interval": checkpoint_interval,
            "segment_bytes": segment_bytes,
            "max_queue": max_queue,
        }
        check_options("receipts", options, _KINDS, ConfigError)
        for name, value in (
            ("checkpoint_calls", checkpoint_calls),
            ("segment_bytes", segment_bytes),
            ("max_queue", max_queue),
        ):
            if value < 1:
                raise ConfigError(f"receipts: {name} must be at least 1, not {value}")
        if fsync is not None and fsync < 0:
            raise ConfigError(f"receipts: fsync must be a number of seconds, 0 or None, not {fsync}")
        self.folder = Path(folder)
        self.key = None if key is None else Path(key)
        self.on_failure: OnFailure = on_failure
        self.fsync = fsync
        self.checkpoint_calls = checkpoint_calls
        self.checkpoint_interval = checkpoint_interval
        self.segment_bytes = segment_bytes
        self.max_queue = max_queue

    def __repr__(self) -> str:
        return f"Receipts({str(self.folder)!r})"
