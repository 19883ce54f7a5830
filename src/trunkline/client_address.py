"""The address that a client without a principal is counted by, in quotas and rate limits."""

from typing import Final

__all__ = ["address_group"]

_IPV6_PREFIX_BITS: Final = 64  # a client may choose the remaining bits of its IPv6 address


def address_group(host: str) -> str:
    """Return the address that a client is counted by. For IPv6 that is the /64 network: a client may choose the other
    bits."""
    if ":" not in host:
        return host
    import ipaddress  # imported here: slow, and most clients have an IPv4 address

    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _IPV6_PREFIX_BITS), strict=False))
    except ValueError:
        return host
