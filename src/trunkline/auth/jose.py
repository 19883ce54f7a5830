"""Signatures, by joserfc: keys that sign, sets of keys that verify.

Only pairs of keys are known here. A secret that both sides have could be used by either, and `none` is no signature at
all; neither can be switched on. What fails never says what was in the token.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, cast

from msgspec import MsgspecError, Struct

from trunkline.errors import ConfigError
from trunkline.wire import codec

try:
    from joserfc import jws
    from joserfc.errors import JoseError, UnsupportedAlgorithmError
    from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
except ImportError as error:
    raise ConfigError("authorization needs the package joserfc: pip install 'trunkline[auth]'") from error

__all__ = [
    "ALGORITHMS",
    "BadSignature",
    "InvalidJws",
    "KeySet",
    "MalformedJws",
    "SignedToken",
    "SigningKey",
    "UnknownKey",
    "decode_unverified",
    "thumbprint",
    "verify_with_key",
]

_EC: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ED: Final = ("EdDSA", "Ed25519")
ALGORITHMS: Final = (*_RSA, *_EC, *_ED)
"""Every algorithm that is known here: whoever verifies with one cannot sign."""

_KEY_TYPES: Final[Mapping[str, type[ECKey | RSAKey | OKPKey]]] = {"EC": ECKey, "RSA": RSAKey, "OKP": OKPKey}
_MIN_MODULUS_CHARS: Final = 342  # characters of 2048 bits, in base 64
_PUBLIC_MEMBERS: Final = {"EC": ("crv", "kty", "x", "y"), "RSA": ("e", "kty", "n"), "OKP": ("crv", "kty", "x")}


class InvalidJws(Exception):
    """A token that proves nothing."""


class MalformedJws(InvalidJws):
    """No token at all, or one of a kind that is not taken."""


class UnknownKey(InvalidJws):
    """Signed with a key that is not in the set; it may be there later."""


class BadSignature(InvalidJws):
    """Not signed with the key that it names."""


class SignedToken(Struct, frozen=True):
    """What a token says, and its signature proves."""

    header: dict[str, Any]
    claims: dict[str, Any]


class _Registry(jws.JWSRegistry):
    """Which algorithms are taken. Headers that are not known are let be, other than those that must be understood."""

    max_header_length = 16384  # some have the certificate of their key with them

    def __init__(self, algorithms: Collection[str]) -> None:
        super().__init__(algorithms=frozenset(algorithms).intersection(ALGORITHMS), strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """An algorithm; without an opinion about its name, unlike the library."""
        if name not in cast("Collection[str]", self.allowed):
            raise UnsupportedAlgorithmError("the algorithm is not allowed")
        return self.algorithms[name]


_registries: dict[tuple[str, ...], _Registry] = {}


def _registry_for(algorithms: Sequence[str]) -> _Registry:
    known = _registries.get(wanted := tuple(algorithms))
    if known is None:
        known = _registries[wanted] = _Registry(wanted)
    return known


# --- reading ---------------------------------------------------------------------------------------


def decode_unverified(token: str) -> SignedToken:
    """What a token says, without any proof: good for finding out who could prove it. Raises `Malformed`."""
    return _decode_payload(_extract_compact(token, _registry_for(ALGORITHMS)))


def _extract_compact(token: str, registry: _Registry) -> jws.CompactSignature:
    try:
        found = jws.extract_compact(token.encode("ascii"), None, registry)
        registry.check_header(found.protected)
    except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
        raise MalformedJws("it is not a signed token") from None
    return found


_decode_object: Final = codec.json_decoder(dict[str, Any])


def _decode_payload(found: jws.CompactSignature) -> SignedToken:
    try:
        return SignedToken(found.protected, _decode_object(found.payload or b""))
    except (MsgspecError, ValueError, RecursionError):
        raise MalformedJws("what is signed is not a JSON object") from None


def _is_signed_by(found: jws.CompactSignature, key: Key, registry: _Registry) -> bool:
    """Whether a key, which has to be made for it, has signed."""
    try:
        return jws.validate_compact(found, key, registry=registry)
    except (JoseError, ValueError):
        return False


# --- keys that verify --------------------------------------------------------------------------------


def _import_public_key(jwk: Any) -> Key | None:
    """A public key for signatures; None if it is another, or too weak."""
    if not isinstance(jwk, dict) or "d" in (given := cast("dict[str, Any]", jwk)):
        return None
    kind = _KEY_TYPES.get(str(given.get("kty")))
    if (
        kind is None
        or given.get("use", "sig") != "sig"
        or (kind is RSAKey and len(str(given.get("n"))) < _MIN_MODULUS_CHARS)
    ):
        return None
    try:
        return kind.import_key(given)
    except (JoseError, ValueError, TypeError, KeyError):
        return None


class KeySet:
    """The public keys of an issuer, as it publishes them. Keys of no use here are passed over."""

    def __init__(self, jwks: bytes) -> None:
        """Raises `Malformed` if there are none at all in what was published."""
        try:
            listed: Any = _decode_object(jwks).get("keys")
        except (MsgspecError, ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list):
            raise MalformedJws("it is not a set of keys")
        self._keys = [key for each in cast("list[Any]", listed) if (key := _import_public_key(each)) is not None]

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, token: str, algorithms: Sequence[str] = ALGORITHMS) -> SignedToken:
        """What a token says, if one of these keys has signed it. Raises `Malformed`, `UnknownKey` or `BadSignature`."""
        registry = _registry_for(algorithms)
        found = _extract_compact(token, registry)
        if found.protected.get("alg") not in cast("Collection[str]", registry.allowed):
            raise MalformedJws("it is signed by an algorithm that is not taken")
        kid: Any = found.protected.get("kid")
        named = [key for key in self._keys if kid is not None and key.kid == kid]
        if any(_is_signed_by(found, key, registry) for key in named):
            return _decode_payload(found)
        if named:
            raise BadSignature("its signature is not that of the key that it names")
        nameless = self._keys if kid is None else [key for key in self._keys if key.kid is None]
        if any(_is_signed_by(found, key, registry) for key in nameless):
            return _decode_payload(found)
        raise UnknownKey("it is signed with a key that its issuer does not publish")


def verify_with_key(jwk: Mapping[str, Any], token: str, algorithms: Sequence[str] = ALGORITHMS) -> SignedToken:
    """What a token says, if it is signed with that very key. Raises `Malformed` or `BadSignature`."""
    registry = _registry_for(algorithms)
    found = _extract_compact(token, registry)
    key = _import_public_key(dict(jwk))
    if key is None:
        raise MalformedJws("its key is not a public one for signatures")
    if found.protected.get("alg") not in cast("Collection[str]", registry.allowed):
        raise MalformedJws("it is signed by an algorithm that is not taken")
    if not _is_signed_by(found, key, registry):
        raise BadSignature("its signature is not that of its key")
    return _decode_payload(found)


def thumbprint(jwk: Mapping[str, Any]) -> str:
    """The name of a key that follows from the key, as RFC 7638 has it. Raises `Malformed`."""
    key = _import_public_key(
        {name: value for name, value in jwk.items() if name in _PUBLIC_MEMBERS.get(str(jwk.get("kty")), ())}
    )
    if key is None:
        raise MalformedJws("it is not a public key for signatures")
    return key.thumbprint()


# --- keys that sign ----------------------------------------------------------------------------------


class SigningKey:
    """A private key, and the algorithm that it signs by."""

    def __init__(self, key: ECKey | RSAKey | OKPKey, algorithm: str, kid: str | None) -> None:
        """See `generate`, `from_pem` and `from_jwk`."""
        self._key = key
        self.algorithm = algorithm
        self.kid = kid
        bare: dict[str, Any] = {name: key.dict_value[name] for name in _PUBLIC_MEMBERS[key.key_type]}
        self.public: dict[str, Any] = bare if kid is None else {**bare, "kid": kid}
        self.thumbprint: str = key.thumbprint()
        if not key.is_private:
            raise ConfigError("a key that signs is a private one")

    @classmethod
    def generate(cls, algorithm: str = "ES256", *, kid: str | None = None) -> "SigningKey":
        """A new key."""
        kind = _key_type_for(algorithm)
        if kind is RSAKey:
            made: ECKey | RSAKey | OKPKey = RSAKey.generate_key(2048)
        elif kind is ECKey:
            made = ECKey.generate_key(cast("Literal['P-256']", _EC[algorithm]))
        else:
            made = OKPKey.generate_key("Ed25519")
        return cls(made, algorithm, kid)

    @classmethod
    def from_pem(cls, pem: str | bytes, algorithm: str, *, kid: str | None = None) -> "SigningKey":
        """A key as files hold it; `kid` is the name by which others know it."""
        try:
            return cls(_key_type_for(algorithm).import_key(pem), algorithm, kid)._check_can_sign()
        except (JoseError, ValueError, TypeError):
            raise ConfigError(f"there is no private key for {algorithm} in what was given") from None

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, Any]) -> "SigningKey":
        """A key as `to_jwk` gives it."""
        algorithm, kid = str(jwk.get("alg")), jwk.get("kid")
        try:
            given: Any = {name: value for name, value in jwk.items() if name not in {"alg", "kid"}}
            return cls(_key_type_for(algorithm).import_key(given), algorithm, kid)._check_can_sign()
        except (JoseError, ValueError, TypeError, KeyError):
            raise ConfigError("that is not a private key") from None

    def to_jwk(self) -> dict[str, Any]:
        """All of the key, with what is private: for wherever secrets are kept."""
        named = {} if self.kid is None else {"kid": self.kid}
        return {**self._key.as_dict(private=True), "alg": self.algorithm, **named}

    def sign(self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> str:
        """A token that says so."""
        named = {} if self.kid is None else {"kid": self.kid}
        told = {"alg": self.algorithm, **named, **(header or {})}
        return jws.serialize_compact(told, codec.to_json(dict(claims)), self._key, registry=_registry_for(ALGORITHMS))

    def _check_can_sign(self) -> "SigningKey":
        """The key, if it can sign: its curve may be another than the algorithm's."""
        self.sign({})
        return self

    def __repr__(self) -> str:
        return f"SigningKey({self.algorithm}, {self.thumbprint})"


def _key_type_for(algorithm: str) -> type[ECKey | RSAKey | OKPKey]:
    if algorithm in _EC:
        return ECKey
    if algorithm in _RSA:
        return RSAKey
    if algorithm in _ED:
        return OKPKey
    raise ConfigError(f"{algorithm!r} is not an algorithm for signatures that others verify; one of {ALGORITHMS} is")
