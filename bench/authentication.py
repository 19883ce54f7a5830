"""Authentication of the benchmark's server, in the rows that use it: one token, valid until 2100, of an issuer whose
keys the server's own process publishes. The private key was discarded.
"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

AUDIENCE = "bench"
ISSUER = "http://127.0.0.1:1/issuer"
TOKEN = (
    "eyJhbGciOiJFUzI1NiIsImtpZCI6ImJlbmNoIiwidHlwIjoiYXQrand0In0.eyJpc3MiOiJodHRwOi8vMTI3LjAuMC4xOjEvaXNz"
    "dWVyIiwiYXVkIjoiYmVuY2giLCJzdWIiOiJhZGEiLCJjbGllbnRfaWQiOiJkcml2ZXIiLCJzY29wZSI6ImJlbmNoOnVzZSBiZW5j"
    "aDptb3JlIiwiaWF0IjoxNzAwMDAwMDAwLCJleHAiOjQxMDI0NDQ4MDAsImp0aSI6ImJlbmNoIn0.Q1tJ_KtbTT0DPYB3sWLT1b8x"
    "LAtnoCTydM-lmIrVe7mCEvxbmijWYWG7WNacD4KNqUk_UJvlC17JfMGB_NLtPw"
)
_KEYS = (
    b'{"keys":[{"crv":"P-256","kty":"EC","x":"_QI_T6hPfWllBuFzXdxpf5F6Ob4GjWvoQ3zA_sxqekA","y":"kdq59zG-5q'
    b'qOvZwEfnlSeRH52FuEDocSSZ1X2UWeEIg","kid":"bench","alg":"ES256","use":"sig"}]}'
)


class _Keys(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(_KEYS)))
        self.end_headers()
        self.wfile.write(_KEYS)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def auth() -> Any:
    """The auth option of a server that requires the token."""
    from trunkline.auth import Jwt, ResourceServer

    keys = HTTPServer(("127.0.0.1", 0), _Keys)
    threading.Thread(target=keys.serve_forever, daemon=True).start()
    where = f"http://127.0.0.1:{keys.server_port}/keys"
    return ResourceServer(Jwt(ISSUER, jwks_uri=where, audience=AUDIENCE), scopes=["bench:use"])
