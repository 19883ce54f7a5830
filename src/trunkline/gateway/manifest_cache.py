"""Cache of manifests: what the backends of a gateway have listed, in files of this user.

A gateway offers a cached manifest until its backend has started. A file that is missing, damaged or of another backend
is no manifest. Errors of the file system cost speed only, so they are logged and not raised.
"""

import logging
import os
import secrets
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

from trunkline.private_folder import make_private_folder
from trunkline.proxies.mirrored_catalog import Manifest
from trunkline.wire import codec

__all__ = ["ManifestCache"]

_log: Final = logging.getLogger("trunkline")
_MAX_BYTES: Final = 32 * 1024 * 1024
_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class _ManifestFile(Struct, rename="camel"):
    identity: str
    manifest: Manifest
    format: str = "trunkline manifest 1"


_decode: Final = codec.json_decoder(_ManifestFile)


class ManifestCache:
    """Manifests by the identities of backends. Its methods block for as long as the file system does."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder nothing is cached."""
        self._folder = folder

    @staticmethod
    def identity(*parts: str | Sequence[str] | None) -> str:
        """Return a digest of what identifies a backend."""
        return sha256(codec.to_canonical(list(parts))).hexdigest()

    def load(self, identity: str) -> Manifest | None:
        """Return the manifest of a backend; None if there is none."""
        if self._folder is None:
            return None
        try:
            with open(os.open(self._path(self._folder, identity), os.O_RDONLY | _FLAGS), "rb") as file:
                content = file.read(_MAX_BYTES)
            found = _decode(content)
        except FileNotFoundError:
            return None
        except (OSError, codec.DecodeError, RecursionError) as error:
            _log.warning("a cached list cannot be used: %s", error)
            return None
        return found.manifest if found.identity == identity else None

    def save(self, identity: str, manifest: Manifest) -> None:
        """Store the manifest of a backend."""
        if self._folder is None:
            return
        content = codec.to_json(_ManifestFile(identity, manifest))
        try:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not make_private_folder(self._folder):
                raise PermissionError(f"other users can open {self._folder}")
            fresh = self._folder / f"{secrets.token_hex(8)}.new"
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600), "wb") as file:
                file.write(content)
            fresh.replace(self._path(self._folder, identity))
        except OSError as error:
            _log.warning("the lists of a backend cannot be cached: %s", error)

    @staticmethod
    def _path(folder: Path, identity: str) -> Path:
        return folder / f"{identity}.json"
