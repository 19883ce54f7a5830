"""TLS on the client side of an open connection.

`create_connection` opens a connection with TLS in one step, but does not return the TCP transport. If the call is
cancelled when the handshake has just ended, the TLS transport keeps the socket open until the peer closes too. A caller
that closes the socket itself frees a descriptor that the event loop still watches and that the next socket gets. In two
steps, the TCP transport can be aborted at any time.
"""

import asyncio
import ssl
from typing import Any

__all__ = ["start_tls"]


async def start_tls(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, host: str, **options: Any
) -> Any:
    """Start TLS with the server of that name, pass the TLS transport to the protocol, and return it. If that fails,
    abort the connection."""
    loop = asyncio.get_running_loop()
    try:
        secured: Any = await loop.start_tls(transport, protocol, context, server_hostname=host, **options)
    except BaseException:
        transport.abort()
        raise
    protocol.connection_made(secured)
    return secured
