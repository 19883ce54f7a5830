"""Reloading: run changed code in a server that keeps serving.

When a source file changes, the program is imported again, with the modules of its folder, and the server takes over
the new entries: connections, sessions and calls in progress are not touched. Code that cannot be imported changes
nothing. What a program does besides making entries (options of `Server`, lifespan, middleware) needs a restart.

One process has a thread that watches the files. With workers, their supervisor watches instead, because it forks and so
has no threads. It loads the code first, which shows whether that works and serves workers that start later; then each
worker loads it too.
"""

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trunkline.cli.code_watch import Snapshot, changed_files, snapshot_files
from trunkline.cli.loading import load_server, split_object
from trunkline.errors import TrunklineError
from trunkline.server.run.importing import Overrides

if TYPE_CHECKING:
    from trunkline.server.server import Server

__all__ = ["Reloader"]

_INTERVAL: Final = 0.25  # seconds between two looks at the files


class Reloader:
    """Loads changed code of a program into its server."""

    def __init__(self, server: "Server", program: str, overrides: Overrides, report: Callable[[str], None]) -> None:
        self._server = server
        self._program = program
        self._overrides = overrides
        self._report = report
        self._loading = threading.Lock()
        self._folder = _folder_of(program)
        self._seen: Snapshot = snapshot_files([self._folder])

    def start(self) -> None:
        """Watch until the process ends."""
        threading.Thread(target=self._watch, name="trunkline-reload", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            self.check()

    def check(self) -> bool:
        """Reload the program if a file has changed since the last look; return whether new code serves now."""
        now = snapshot_files([self._folder])
        changed = changed_files(self._seen, now)
        if not changed:
            return False
        self._seen = now
        names = ", ".join(Path(path).name for path in changed[:3])
        error = self._replace_entries()
        self._report(f"{names} changed; {'reloaded' if error is None else f'the old code keeps serving: {error}'}")
        return error is None

    def load(self) -> None:
        """Load the program on a thread, without a look at its files."""
        threading.Thread(target=self._load_quietly, name="trunkline-reload", daemon=True).start()

    def _load_quietly(self) -> None:
        error = self._replace_entries()
        if error is not None:  # the supervisor could load it, so the files have changed again
            self._report(f"process {os.getpid()}: the old code keeps serving: {error}")

    def _replace_entries(self) -> str | None:
        """Load the program and replace the entries of the server; return the reason if that fails."""
        with self._loading:
            try:
                self._server.replace_entries(self._import())
            except TrunklineError as error:
                return str(error)
            except SystemExit as end:
                return f"the program exits with {end.code!r} when it is imported"
        return None

    def _import(self) -> "Server":
        """Import the program again. Its old modules come back if that fails."""
        importlib.invalidate_caches()
        folder = f"{self._folder}/"
        own = {
            name: module
            for name, module in [*sys.modules.items()]
            if name != "__main__" and str(getattr(module, "__file__", None) or "").startswith(folder)
        }
        for name in own:
            del sys.modules[name]
        try:
            return load_server(self._program, self._overrides)
        except BaseException:
            sys.modules.update(own)
            raise


def _folder_of(program: str) -> Path:
    """Return the folder whose files belong to a program: of a package, the folder that contains it."""
    place = split_object(program)[0]
    if place.endswith(".py"):
        return Path(place).resolve().parent
    file = getattr(sys.modules.get(place.partition(".")[0]), "__file__", None)
    return Path.cwd() if file is None else Path(file).resolve().parent
