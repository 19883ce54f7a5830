"""The `Request` that handlers see, made from the transport's request."""

from collections.abc import Mapping
from typing import Any

from trunkline.http import Request
from trunkline.transports.channel import RequestHead

__all__ = ["make_request"]


def make_request(
    head: RequestHead,
    headers: Mapping[str, str],
    principal: Any,
    lifespan: Any,
    *,
    transport: str = "http",
    body: bytes = b"",
    path_params: Mapping[str, str] | None = None,
) -> Request:
    """Return the request for a handler."""
    return Request(
        method=head.method,
        path=head.path,
        query_string=head.query.decode("latin-1"),
        headers=headers,
        body=body,
        path_params={} if path_params is None else path_params,
        client_host=head.client_host,
        scheme=head.scheme,
        root_path=head.prefix + head.root_path,
        principal=principal,
        transport=transport,
        lifespan=lifespan,
    )
