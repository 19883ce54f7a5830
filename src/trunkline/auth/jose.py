"""JSON Web Signatures (joserfc): signing keys, and key sets that verify.

Only asymmetric algorithms are supported. With a shared secret either side could sign, and `none` is no signature, so
neither can be enabled. Error messages never contain parts of a token.
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
"""Supported algorithms. All are asymmetric: a verification key cannot sign."""

_KEY_TYPES: Final[Mapping[str, type[ECKey | RSAKey | OKPKey]]] = {"EC": ECKey, "RSA": RSAKey, "OKP": OKPKey}
_MIN_MODULUS_CHARS: Final = 342  # base64 characters of a 2048-bit modulus
_PUBLIC_MEMBERS: Final = {"EC": ("crv", "kty", "x", "y"), "RSA": ("e", "kty", "n"), "OKP": ("crv", "kty", "x")}


class InvalidJws(Exception):
    """A token that cannot be verified."""


class MalformedJws(InvalidJws):
    """Not a signed token, or an unsupported kind of one."""


class UnknownKey(InvalidJws):
    """The signing key is not in the key set; the issuer may publish it later."""


class BadSignature(InvalidJws):
    """The signature does not match the key that the token names."""


class SignedToken(Struct, frozen=True):
    """Header and claims of a token."""

    header: dict[str, Any]
    claims: dict[str, Any]


class _Registry(jws.JWSRegistry):
    """The allowed algorithms. Unknown header parameters are ignored, except those listed in `crit`."""

    max_header_length = 16384  # bytes: some headers contain a certificate chain

    def __init__(self, algorithms: Collection[str]) -> None:
        super().__init__(algorithms=frozenset(algorithms).intersection(ALGORITHMS), strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """Return an allowed algorithm, without joserfc's own policy about names."""
        if name not in cast("Collection[str]", self.allowed):
            raise UnsupportedAlgorithmError("the algorithm is not allowed")
        return self.algorithms[name]


_registries: dict[tuple[str, ...], _Registry] = {}


def _registry_for(algorithms: Sequence[str]) -> _Registry:
    registry = _registries.get(allowed := tuple(algorithms))
    if registry is None:
        registry = _registries[allowed] = _Registry(allowed)
    return registry


# --- parsing ---------------------------------------------------------------------------------------


def decode_unverified(token: str) -> SignedToken:
    """Decode a token without verification, to find the issuer or key that could verify it. Raises `MalformedJws`."""
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
    """Return whether the signature matches a key of the right type."""
    try:
        return jws.validate_compact(found, key, registry=registry)
    except (JoseError, ValueError):
        return False


# --- verification keys -----------------------------------------------------------------------------


def _import_public_key(jwk: Any) -> Key | None:
    """Import a public signature key; return None if it has another purpose or is too weak."""
    if not isinstance(jwk, dict) or "d" in (members := cast("dict[str, Any]", jwk)):
        return None
    kind = _KEY_TYPES.get(str(members.get("kty")))
    if (
        kind is None
        or members.get("use", "sig") != "sig"
        or (kind is RSAKey and len(str(members.get("n"))) < _MIN_MODULUS_CHARS)
    ):
        return None
    try:
        return kind.import_key(members)
    except (JoseError, ValueError, TypeError, KeyError):
        return None


class KeySet:
    """An issuer's published public keys. Unusable keys are skipped."""

    def __init__(self, jwks: bytes) -> None:
        """Parse a JWK Set. Raises `MalformedJws`."""
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
        """Verify a token with these keys and return its content. Raises `MalformedJws`, `UnknownKey` or
        `BadSignature`."""
        registry = _registry_for(algorithms)
        found = _extract_compact(token, registry)
        if found.protected.get("alg") not in cast("Collection[str]", registry.allowed):
            raise MalformedJws("its signature algorithm is not allowed")
        kid: Any = found.protected.get("kid")
        named = [key for key in self._keys if kid is not None and key.kid == kid]
        if any(_is_signed_by(found, key, registry) for key in named):
            return _decode_payload(found)
        if named:
            raise BadSignature("its signature is not that of the key that it names")
        nameless = self._keys if kid is None else [key for key in self._keys if key.kid is None]
        if any(_is_signed_by(found, key, registry) for key in nameless):
            return _decode_payload(found)
        raise UnknownKey("its key is not among those that the issuer publishes")


def verify_with_key(jwk: Mapping[str, Any], token: str, algorithms: Sequence[str] = ALGORITHMS) -> SignedToken:
    """Verify a token with one public key and return its content. Raises `MalformedJws` or `BadSignature`."""
    registry = _registry_for(algorithms)
    found = _extract_compact(token, registry)
    key = _import_public_key(dict(jwk))
    if key is None:
        raise MalformedJws("its key is not a public one for signatures")
    if found.protected.get("alg") not in cast("Collection[str]", registry.allowed):
        raise MalformedJws("its signature algorithm is not allowed")
    if not _is_signed_by(found, key, registry):
        raise BadSignature("its signature is not that of its key")
    return _decode_payload(found)


def thumbprint(jwk: Mapping[str, Any]) -> str:
    """Return the RFC 7638 thumbprint of a public key. Raises `MalformedJws`."""
    key = _import_public_key(
        {name: value for name, value in jwk.items() if name in _PUBLIC_MEMBERS.get(str(jwk.get("kty")), ())}
    )
    if key is None:
        raise MalformedJws("it is not a public key for signatures")
    return key.thumbprint()


# --- signing keys ----------------------------------------------------------------------------------


class SigningKey:
    """A private key and its signature algorithm."""

    def __init__(self, key: ECKey | RSAKey | OKPKey, algorithm: str, kid: str | None) -> None:
        """Use `generate`, `from_pem` or `from_jwk` instead."""
        self._key = key
        self.algorithm = algorithm
        self.kid = kid
        bare: dict[str, Any] = {name: key.dict_value[name] for name in _PUBLIC_MEMBERS[key.key_type]}
        self.public: dict[str, Any] = bare if kid is None else {**bare, "kid": kid}
        self.thumbprint: str = key.thumbprint()
        if not key.is_private:
            raise ConfigError("a signing key must be a private key")

    @classmethod
    def generate(cls, algorithm: str = "ES256", *, kid: str | None = None) -> "SigningKey":
        """Generate a key."""
        kind = _key_type_for(algorithm)
        if kind is RSAKey:
            key: ECKey | RSAKey | OKPKey = RSAKey.generate_key(2048)
        elif kind is ECKey:
            key = ECKey.generate_key(cast("Literal['P-256']", _EC[algorithm]))
        else:
            key = OKPKey.generate_key("Ed25519")
        return cls(key, algorithm, kid)

    @classmethod
    def from_pem(cls, pem: str | bytes, algorithm: str, *, kid: str | None = None) -> "SigningKey":
        """Import a PEM file's content; `kid` is the key id under which the verifier knows the key."""
        try:
            return cls(_key_type_for(algorithm).import_key(pem), algorithm, kid)._check_can_sign()
        except (JoseError, ValueError, TypeError):
            raise ConfigError(f"the PEM text has no private key for {algorithm}") from None

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, Any]) -> "SigningKey":
        """Import a key that `to_jwk` exported."""
        algorithm, kid = str(jwk.get("alg")), jwk.get("kid")
        try:
            members: Any = {name: value for name, value in jwk.items() if name not in {"alg", "kid"}}
            return cls(_key_type_for(algorithm).import_key(members), algorithm, kid)._check_can_sign()
        except (JoseError, ValueError, TypeError, KeyError):
            raise ConfigError("that is not a private key") from None

    def to_jwk(self) -> dict[str, Any]:
        """Export the key with its private part. Store it like a secret."""
        named = {} if self.kid is None else {"kid": self.kid}
        return {**self._key.as_dict(private=True), "alg": self.algorithm, **named}

    def sign(self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> str:
        """Return a compact JWS of these claims."""
        named = {} if self.kid is None else {"kid": self.kid}
        protected = {"alg": self.algorithm, **named, **(header or {})}
        return jws.serialize_compact(
            protected, codec.to_json(dict(claims)), self._key, registry=_registry_for(ALGORITHMS)
        )

    def _check_can_sign(self) -> "SigningKey":
        """Return the key after a test signature: its curve may not match the algorithm."""
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
