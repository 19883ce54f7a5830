"""Ed25519 keys, and the signatures of checkpoints."""

import os
from collections.abc import Iterable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trunkline.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Signer", "create_key", "fingerprint", "is_signed", "load_public_keys", "load_signer", "signed_text"]

_PURPOSE: Final = "trunkline receipts checkpoint 1"
_PRIVATE_MODE: Final = 0o600


def signed_text(chain: str, n: int, head: bytes, *, final: bool) -> bytes:
    """Return the bytes that a checkpoint signs: its place, and the hash of the line before."""
    return f"{_PURPOSE}\n{chain}\n{n}\n{'final' if final else 'open'}\n{head.hex()}\n".encode()


def fingerprint(public: str) -> str:
    """Return a short name of a public key."""
    return sha256(bytes.fromhex(public)).hexdigest()[:16]


class Signer:
    """A private key."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw().hex()

    def sign(self, text: bytes) -> str:
        """Return the signature of a text, in hexadecimal."""
        return self._key.sign(text).hex()


def is_signed(public: str, signature: str, text: bytes) -> bool:
    """Return whether a signature is that of a public key."""
    _check_installed()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), text)
    except (InvalidSignature, ValueError):
        return False
    return True


def create_key(path: Path) -> str:
    """Write a new private key to `path`, readable by its owner only, and the public key beside it with the suffix
    `.pub`. Return the public key. Raises `ConfigError` if either file exists."""
    _check_installed()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    public_path = path.with_name(f"{path.name}.pub")
    if public_path.exists():
        raise ConfigError(f"{public_path} exists; choose another name for the new key")
    _write_new(path, private, _PRIVATE_MODE)
    _write_new(public_path, public, 0o644)
    return key.public_key().public_bytes_raw().hex()


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise ConfigError(f"{path} exists; choose another name for the new key") from None
    except OSError as error:
        raise ConfigError(f"cannot write the key {path}: {error.strerror}") from None


def load_signer(path: Path) -> Signer:
    """Return the private key in a file. Raises `ConfigError` if it has none, or if others can read it."""
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _read(path)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(f"other users can read the private key {path}; run `chmod 600` on it, or make a new one")
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} has no private key without a password: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"the key {path} is not an Ed25519 key; make one with `trunkline receipts keygen`")
    return Signer(key)


def load_public_keys(paths: Iterable[Path]) -> frozenset[str]:
    """Return the public keys in files. Raises `ConfigError` for a file without one."""
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found: set[str] = set()
    for path in paths:
        content = _read(path)
        try:
            key = load_pem_public_key(content)
        except ValueError:
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigError(f"{path} has no public Ed25519 key; `trunkline receipts keygen` writes it as KEY.pub")
        found.add(key.public_bytes_raw().hex())
    return frozenset(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}") from None


def _check_installed() -> None:
    if find_spec("cryptography") is None:
        raise ConfigError("signing receipts needs the package cryptography: pip install 'trunkline[http]'")
