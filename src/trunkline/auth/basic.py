"""HTTP Basic credentials of an OAuth client (RFC 6749, section 2.3.1)."""

from base64 import b64encode
from urllib.parse import quote_plus

__all__ = ["basic_auth_header"]


def basic_auth_header(client_id: str, secret: str) -> str:
    """Return the value of `Authorization`. RFC 6749 requires form encoding of both parts first, which plain HTTP
    Basic does not."""
    return f"Basic {b64encode(f'{quote_plus(client_id)}:{quote_plus(secret)}'.encode()).decode()}"
