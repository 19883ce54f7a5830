"""A client's own id and secret as a header (RFC 6749, section 2.3.1)."""

from base64 import b64encode
from urllib.parse import quote_plus

__all__ = ["basic_auth_header"]


def basic_auth_header(client_id: str, secret: str) -> str:
    """The value of Authorization. Both are encoded as in a form first, which plain HTTP does not ask for."""
    return f"Basic {b64encode(f'{quote_plus(client_id)}:{quote_plus(secret)}'.encode()).decode()}"
