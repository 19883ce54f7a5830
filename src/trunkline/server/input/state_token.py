"""The `requestState` token: server state that a client sends back with its answers.

A client may store it, change it, disclose it, or send it with another request. A token therefore opens only on the
server that sealed it, for the principal and the request that it is bound to, and for a limited time. It may be opened
more than once: an action that must happen once needs a record of its own.

If both requests are certain to reach the same process, the token is a handle of a state in memory. Otherwise it is the
encrypted state itself, which every process with one of the keys can open.
"""

import hashlib
import hmac
import os
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from trunkline.config import KIB, MIB, MIN_KEY_BYTES
from trunkline.errors import ConfigError, InvalidParams, MisuseError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["EncryptingSealer", "InMemorySealer", "InvalidRequestState", "StateSealer", "request_binding"]

_VERSION: Final = b"\x01"
_PURPOSE: Final = (
    b"trunkline requestState 1"  # HKDF info: separates these keys from other keys derived from the same secret
)
_KEY_ID_SIZE, _NONCE_SIZE, _TAG_SIZE = 8, 12, 16  # bytes
_EXPIRES: Final = struct.Struct(">d")
_OVERHEAD: Final = len(_VERSION) + _KEY_ID_SIZE + _NONCE_SIZE + _EXPIRES.size + _TAG_SIZE


class InvalidRequestState(InvalidParams):
    """A forged or expired `requestState`, or one of another request. The message does not say which."""

    kind = "invalid_request_state"

    def __init__(self) -> None:
        super().__init__(
            "the requestState is invalid for this request, or has expired; send the request again without it"
        )


class StateSealer(Protocol):
    """Converts states to tokens and back. `expires` and `now` are times of one clock; processes that share keys must
    share it as well, so it is wall-clock time."""

    def seal(self, state: bytes, binding: bytes, expires: float) -> str:
        """Return a token for a state. Raises `MisuseError` if the state is too large."""
        ...

    def open(self, text: str, binding: bytes, now: float) -> bytes:
        """Return the state of a token. Raises `InvalidRequestState` if the token is forged or expired, or has another
        binding."""
        ...


def request_binding(principal: str | None, method: str, params_digest: bytes) -> bytes:
    """Return a digest that identifies a request: its principal, its method and its parameters."""
    parts = [b"" if principal is None else b"=" + principal.encode(), method.encode(), params_digest]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


class _StoredState(NamedTuple):
    """A state that a handle refers to."""

    state: bytes
    binding: bytes
    expires: float


class InMemorySealer:
    """Keeps states in memory and returns unguessable handles. Above `max_states` or `max_bytes` it drops the oldest."""

    def __init__(self, max_states: int = 10_000, max_bytes: int = 64 * MIB) -> None:
        self._states: dict[str, _StoredState] = {}
        self._size = 0
        self._max_states = max_states
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._states)

    def seal(self, state: bytes, binding: bytes, expires: float) -> str:
        """Store a state and return its handle."""
        _check_size(state, self._max_bytes)
        handle = urlsafe_b64encode(os.urandom(24)).decode()
        self._states[handle] = _StoredState(state, binding, expires)
        self._size += len(state)
        while len(self._states) > self._max_states or self._size > self._max_bytes:
            self._forget(next(iter(self._states)))
        return handle

    def open(self, text: str, binding: bytes, now: float) -> bytes:
        """Return the state of a handle."""
        while self._states and self._states[oldest := next(iter(self._states))].expires <= now:
            self._forget(oldest)
        stored = self._states.get(text)
        if stored is None or stored.expires <= now or not hmac.compare_digest(stored.binding, binding):
            raise InvalidRequestState
        return stored.state

    def _forget(self, handle: str) -> None:
        self._size -= len(self._states.pop(handle).state)


class EncryptingSealer:
    """Encrypts states with AES-256-GCM. The first key seals and every key opens. To rotate keys, append the new key on
    every process, then move it to the front, and remove the old key when its last state has expired.

    Nonces are random, so a key may seal at most 2**32 states. Without keys the sealer generates one, and its tokens
    become invalid at a restart.
    """

    def __init__(self, keys: Sequence[bytes] = (), limit: int = 64 * KIB) -> None:
        for position, secret in enumerate(keys):
            if len(secret) < MIN_KEY_BYTES:
                raise ConfigError(f"key {position} has {len(secret)} bytes; it needs at least {MIN_KEY_BYTES}")
        ciphers = [_derive_cipher(secret) for secret in keys or (os.urandom(MIN_KEY_BYTES),)]
        self._sealing_cipher = ciphers[0]
        self._ciphers = dict(ciphers)
        self._limit = limit

    def seal(self, state: bytes, binding: bytes, expires: float) -> str:
        """Return the token: version, key id, nonce, and the ciphertext of expiry time and state."""
        _check_size(state, self._limit)
        key_id, cipher = self._sealing_cipher
        head, nonce = _VERSION + key_id, os.urandom(_NONCE_SIZE)
        return _encode_token(head + nonce + cipher.encrypt(nonce, _EXPIRES.pack(expires) + state, head + binding))

    def open(self, text: str, binding: bytes, now: float) -> bytes:
        """Decrypt a token."""
        from cryptography.exceptions import InvalidTag

        sealed = self._decode_token(text)
        after_head = len(_VERSION) + _KEY_ID_SIZE
        head, nonce, hidden = sealed[:after_head], sealed[after_head:][:_NONCE_SIZE], sealed[after_head + _NONCE_SIZE :]
        cipher = self._ciphers.get(head[len(_VERSION) :])
        if cipher is None:
            raise InvalidRequestState
        try:
            plain = cipher.decrypt(nonce, hidden, head + binding)  # fails for another version, too: it is authenticated
        except InvalidTag:
            raise InvalidRequestState from None
        if _EXPIRES.unpack_from(plain)[0] <= now:
            raise InvalidRequestState
        return plain[_EXPIRES.size :]

    def _decode_token(self, text: str) -> bytes:
        longest = (self._limit + _OVERHEAD + 2) // 3 * 4
        if len(text) > longest:
            raise InvalidRequestState
        try:
            sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError:  # characters outside of ASCII, or a wrong length
            raise InvalidRequestState from None
        if len(sealed) < _OVERHEAD or _encode_token(sealed) != text:  # not the canonical base64
            raise InvalidRequestState
        return sealed


def _derive_cipher(secret: bytes) -> "tuple[bytes, AESGCM]":
    """Derive the public key id and the cipher from a secret."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise ConfigError(
            "encrypting request state needs the package cryptography: pip install 'trunkline[http]'"
        ) from error
    derived = HKDF(SHA256(), length=32 + _KEY_ID_SIZE, salt=None, info=_PURPOSE).derive(secret)
    return derived[32:], AESGCM(derived[:32])


def _check_size(state: bytes, limit: int) -> None:
    if len(state) > limit:
        raise MisuseError(
            f"the state of a request has {len(state)} bytes; the maximum is {limit}", kind="state_too_large"
        )


def _encode_token(sealed: bytes) -> str:
    return urlsafe_b64encode(sealed).decode().rstrip("=")
