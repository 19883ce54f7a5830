"""What verifies tokens: the seam, and what comes of it."""

from collections.abc import Awaitable, Collection

from msgspec import Struct

from trunkline.auth.principal import Principal

__all__ = ["BadToken", "Unavailable", "Verified", "Verifier"]


class Verified(Struct, frozen=True):
    """What a token proves."""

    principal: Principal
    expires: float | None = None  # seconds since the epoch: when it stops to; None: nobody said
    key: str | None = None  # the thumbprint of the key without which it proves nothing


class BadToken(Exception):
    """A token that proves nothing, and why, in words that may be told to whoever sent it."""

    def __init__(self, why: str, kind: str = "invalid_token") -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind


class Unavailable(Exception):
    """Nobody can say now whether a token is any good; that is not the fault of whoever sent it."""


class Verifier:
    """Verifies tokens, of one issuer or of a kind of its own. Subclass it for others than those that are here."""

    issuer: str | None = None  # whose tokens these are; None where tokens do not say
    keep: float = 0.0  # for how many seconds an answer may be used again
    generation: int = 0  # another one: what was answered before may not be used again

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified | Awaitable[Verified]:
        """What a token proves to a resource that is known by these names; at once, where nobody has to be asked.

        Raises `BadToken` or `Unavailable`. `now` is in seconds since the epoch."""
        raise NotImplementedError
