"""Results that the workers of a run share."""

import fcntl
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def computed_once(folder: Path, name: str, run: Callable[[], Any]) -> Any:
    """The result of a slow function: computed by the first worker that needs it, read by all others."""
    file = folder / f"{name}.json"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not file.exists():
            file.write_text(json.dumps(run()))
    return _read(file)


@cache
def _read(file: Path) -> Any:
    return json.loads(file.read_text())
