"""What a `requestState` is made of: state of ours that a client carries until it comes back with its answers.

A client may keep it, change it, show it to others, or send it with another request. So it is worth nothing by itself:
it opens only where it was sealed, for the principal and the request that it is bound to, and for a short time. That
one is opened once only is not promised; what must happen once has to be remembered by whoever does it.

Where both requests surely reach the same process a handle will do. Elsewhere the state itself travels, encrypted, and
every process that has one of the keys can open it.
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
_PURPOSE: Final = b"trunkline requestState 1"  # keys of this purpose open nothing else that is made of the same secret
_KEY_ID_SIZE, _NONCE_SIZE, _TAG_SIZE = 8, 12, 16  # bytes
_EXPIRES: Final = struct.Struct(">d")
_OVERHEAD: Final = len(_VERSION) + _KEY_ID_SIZE + _NONCE_SIZE + _EXPIRES.size + _TAG_SIZE


class InvalidRequestState(InvalidParams):
    """A `requestState` that this server did not give, not for this request, or too long ago. Which, is not said."""

    kind = "invalid_request_state"

    def __init__(self) -> None:
        super().__init__("the requestState is not one for this request, or no longer; start again without it")


class StateSealer(Protocol):
    """Makes texts of states, and states of texts. Both times are of one clock; where several processes share keys, of
    one that they share as well, such as `time.time`."""

    def seal(self, state: bytes, binding: bytes, expires: float) -> str:
        """A text for a client to carry. Raises `MisuseError` for a state that is too large."""
        ...

    def open(self, text: str, binding: bytes, now: float) -> bytes:
        """The state in a text. Raises `BadState` for all that was not sealed here, bound to the same, to expire later
        than now."""
        ...


def request_binding(principal: str | None, method: str, params_digest: bytes) -> bytes:
    """What a state is bound to: who asked for what. No two askings have the same."""
    parts = [b"" if principal is None else b"=" + principal.encode(), method.encode(), params_digest]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


class _StoredState(NamedTuple):
    """A state behind a handle."""

    state: bytes
    binding: bytes
    expires: float


class InMemorySealer:
    """States that stay in this process, under names that cannot be guessed. When there are too many, or they are too
    large together, the oldest are forgotten."""

    def __init__(self, max_states: int = 10_000, max_bytes: int = 64 * MIB) -> None:
        self._states: dict[str, _StoredState] = {}
        self._size = 0
        self._max_states = max_states
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._states)

    def seal(self, state: bytes, binding: bytes, expires: float) -> str:
        """A handle of a state."""
        _check_size(state, self._max_bytes)
        handle = urlsafe_b64encode(os.urandom(24)).decode()
        self._states[handle] = _StoredState(state, binding, expires)
        self._size += len(state)
        while len(self._states) > self._max_states or self._size > self._max_bytes:
            self._forget(next(iter(self._states)))
        return handle

    def open(self, text: str, binding: bytes, now: float) -> bytes:
        """The state behind a handle."""
        while self._states and self._states[oldest := next(iter(self._states))].expires <= now:
            self._forget(oldest)
        kept = self._states.get(text)
        if kept is None or kept.expires <= now or not hmac.compare_digest(kept.binding, binding):
            raise InvalidRequestState
        return kept.state

    def _forget(self, handle: str) -> None:
        self._size -= len(self._states.pop(handle).state)


class EncryptingSealer:
    """States that travel, encrypted with AES-256-GCM. The first key seals and all of them open, so a new one is first
    added at the end everywhere, then moved to the front, and the old one is dropped when its last state has expired.

    Nonces are random: a key is good for 2**32 states. Without keys one is made up, which opens nothing after a restart.
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
        """A state, encrypted: version, id of the key, nonce, and the ciphertext of the time and the state."""
        _check_size(state, self._limit)
        key_id, cipher = self._sealing_cipher
        head, nonce = _VERSION + key_id, os.urandom(_NONCE_SIZE)
        return _encode_token(head + nonce + cipher.encrypt(nonce, _EXPIRES.pack(expires) + state, head + binding))

    def open(self, text: str, binding: bytes, now: float) -> bytes:
        """The state in an encrypted one."""
        from cryptography.exceptions import InvalidTag

        sealed = self._decode_token(text)
        after_head = len(_VERSION) + _KEY_ID_SIZE
        head, nonce, hidden = sealed[:after_head], sealed[after_head:][:_NONCE_SIZE], sealed[after_head + _NONCE_SIZE :]
        cipher = self._ciphers.get(head[len(_VERSION) :])
        if cipher is None:
            raise InvalidRequestState
        try:
            plain = cipher.decrypt(nonce, hidden, head + binding)  # of another version, this fails as well
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
        except ValueError:  # letters outside of ASCII, or too few
            raise InvalidRequestState from None
        if len(sealed) < _OVERHEAD or _encode_token(sealed) != text:  # base64 has several spellings
            raise InvalidRequestState
        return sealed


def _derive_cipher(secret: bytes) -> "tuple[bytes, AESGCM]":
    """What a secret encrypts with, and what is told of it in clear."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise ConfigError("sealing state needs the package cryptography: pip install 'trunkline[http]'") from error
    derived = HKDF(SHA256(), length=32 + _KEY_ID_SIZE, salt=None, info=_PURPOSE).derive(secret)
    return derived[32:], AESGCM(derived[:32])


def _check_size(state: bytes, limit: int) -> None:
    if len(state) > limit:
        raise MisuseError(f"the state of a request has {len(state)} bytes, more than {limit}", kind="state_too_large")


def _encode_token(sealed: bytes) -> str:
    return urlsafe_b64encode(sealed).decode().rstrip("=")
