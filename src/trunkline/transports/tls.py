"""TLS contexts of servers, which follow their certificate files.

A certificate is replaced while the server runs. `ServerTls` makes a new context from the files and gives it to new
connections; open ones keep theirs. It does not load the files into the context in use: OpenSSL replaces the certificate
first and the key afterwards, so a key that is missing or of another certificate would leave a context that serves no
connection. A context that could not be made completely is dropped, and the previous one stays in use.

The files are compared by inode, size and modification time, at an interval. Changed files are loaded once they have
stayed the same for one interval, since a program may still be writing them, for example the second certificate of a
chain.
"""

import logging
import os
import ssl
from typing import Any, Final

from trunkline.clock import Clock, Timer
from trunkline.config import CertificateFiles
from trunkline.errors import ConfigError

__all__ = ["FileVersions", "LastCertificate", "ServerTls", "TlsOptions", "make_context"]

_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "the private key does not belong to the certificate; replace both files together",
    "NO_CERTIFICATE_OR_CRL_FOUND": "the file has no certificates",
}
_NOT_PEM: Final = "no complete certificate and private key in PEM format; is a program still writing them?"
_log: Final = logging.getLogger("trunkline")

Version = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and modification time of each file; None for one that is missing."""


def make_context(files: CertificateFiles) -> ssl.SSLContext:
    """Load the files into a new context. Raise `ConfigError` with the reason if that fails."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    password = files.password if files.password is not None else _refuse_password
    try:
        for path in files.paths:
            with open(path, "rb"):  # the errors of OpenSSL do not name the file
                pass
        context.load_cert_chain(files.certfile, files.keyfile, password)
        if files.client_cafile is not None:
            context.load_verify_locations(files.client_cafile)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load the certificate {os.fspath(files.certfile)}: {_explain(error)}") from error
    return context


def _refuse_password() -> str:
    """Raise instead of letting OpenSSL ask for a password at the terminal."""
    raise ValueError("the private key is encrypted; pass password=")


def _explain(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", _NOT_PEM)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    return str(error)


class FileVersions:
    """Decides when to load files that have changed."""

    def __init__(self, loaded: Version) -> None:
        self._loaded = loaded
        self._seen = loaded
        self._failed: Version | None = None

    def is_due(self, found: Version) -> bool:
        """Return whether to load the version that was found: it is new, was not tried before, and has not changed since
        the previous check."""
        settled, self._seen = found == self._seen, found
        if found == self._loaded:
            self._failed = None
        return settled and found not in {self._loaded, self._failed}

    def mark_loaded(self, version: Version) -> None:
        """Record the version in use."""
        self._loaded, self._failed = version, None

    def mark_failed(self, version: Version) -> None:
        """Record a version that cannot be loaded, so that it is not tried again."""
        self._failed = version


class ServerTls:
    """Provides the context of new connections: a fixed one, or one that follows certificate files."""

    def __init__(
        self,
        tls: ssl.SSLContext | CertificateFiles,
        clock: Clock,
        interval: float | None,
        previous: ssl.SSLContext | None = None,
    ) -> None:
        """`interval` is the time between two checks of the files; None means that only `reload` loads them again. If
        the files cannot be loaded, log the reason and use the `previous` context; raise `ConfigError` without one."""
        self._files = tls if isinstance(tls, CertificateFiles) else None
        self._clock = clock
        self._interval = interval
        self._timer: Timer | None = None
        self._versions = FileVersions(_find_version(self._files))
        if self._files is None or previous is None:
            self.context = make_context(tls) if isinstance(tls, CertificateFiles) else tls
        else:
            self.context = previous
            self.reload()

    def watch(self) -> None:
        """Start to check the files, if there are any."""
        if self._files is not None and self._interval is not None:
            self._timer = self._clock.call_at(self._clock.now() + self._interval, self._check)

    def close(self) -> None:
        """Stop checking the files."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reload(self) -> None:
        """Load the files again now; a fixed context stays. If that fails, log the reason and keep the old context."""
        if self._files is not None:
            self._load(self._files, _find_version(self._files))

    def _check(self) -> None:
        if self._files is not None:
            version = _find_version(self._files)
            if self._versions.is_due(version):
                self._load(self._files, version)
        self.watch()

    def _load(self, files: CertificateFiles, version: Version) -> None:
        try:
            self.context = make_context(files)
        except ConfigError as error:
            self._versions.mark_failed(version)
            _log.error("%s; new connections still use the previous certificate", error)
        else:
            self._versions.mark_loaded(version)
            _log.info("loaded the certificate %s again; new connections use it", os.fspath(files.certfile))


def _find_version(files: CertificateFiles | None) -> Version:
    return () if files is None else tuple(map(_find_file_version, files.paths))


def _find_file_version(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class LastCertificate:
    """The last context that certificate files gave, in a process without an event loop: for workers that it starts
    while the files cannot be loaded. The workers log failures."""

    def __init__(self, files: CertificateFiles, interval: float | None) -> None:
        """Raise `ConfigError` if the files cannot be loaded."""
        self._files = files
        self._interval = interval
        self._next_check = 0.0
        self._versions = FileVersions(_find_version(files))
        self.context = make_context(files)

    def check(self, now: float) -> None:
        """Load the files again if they have changed; look at them once in an interval."""
        if self._interval is not None and now >= self._next_check:
            self._next_check = now + self._interval
            if self._versions.is_due(_find_version(self._files)):
                self.reload()

    def reload(self) -> None:
        """Load the files again, or keep the context if that fails."""
        version = _find_version(self._files)
        try:
            self.context = make_context(self._files)
        except ConfigError:
            self._versions.mark_failed(version)
        else:
            self._versions.mark_loaded(version)


class TlsOptions:
    """The TLS arguments of `connect_accepted_socket`, for each connection of a listener."""

    def __init__(
        self, tls: ssl.SSLContext | ServerTls | None, handshake_timeout: float | None = None, **others: Any
    ) -> None:
        """Without `tls`, connections are not encrypted. `handshake_timeout` limits the TLS handshake, in seconds; None
        means asyncio's default of one minute."""
        self._tls = tls
        self._others = others if handshake_timeout is None else {**others, "ssl_handshake_timeout": handshake_timeout}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a new connection; none means no TLS."""
        if self._tls is None:
            return {}
        return {"ssl": self._tls.context if isinstance(self._tls, ServerTls) else self._tls, **self._others}

    def watch(self) -> None:
        """Start to follow certificate files."""
        if isinstance(self._tls, ServerTls):
            self._tls.watch()

    def close(self) -> None:
        """Stop following certificate files."""
        if isinstance(self._tls, ServerTls):
            self._tls.close()
