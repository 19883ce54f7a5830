"""Cases of the corpus that the server gets wrong, and rules that its responses break.

A listed case or rule that is no longer broken fails its test: remove it here then.
"""

from typing import Final

__all__ = ["BROKEN_RULES", "WRONG"]

FAILURES: Final = {
    "A malformed request closes the connection before the requests in front of it are answered.": [
        "before_the_request: NUL between two requests",
        "before_the_request: space between two requests",
        "chunks: chunk behind the last chunk",
        "chunks: garbage behind the last chunk",
        "content_length: one less than the body",
        "end_of_input: behind a body of no length",
        "pipelining: slow call before a field without a colon",
        "pipelining: slow call before garbage",
        "pipelining: two valid before one with NUL",
        "pipelining: valid POST before garbage",
        "pipelining: valid before a bad length",
        "pipelining: valid before an unknown coding",
        "pipelining: valid before another version",
        "pipelining: valid before garbage",
        "pipelining: valid before two framings",
        "transfer_encoding: underscore in the name",
    ],
    "A request without Host is accepted, or refused with 403.": [
        "absolute_form: without Host",
        "host: missing",
        "host: missing at the endpoint",
        "host: missing for a POST",
        "pipelining: valid before a missing Host",
        "upgrade: WebSocket without Host",
    ],
    "An invalid Host, or authority of the target, is refused with 403.": [
        "absolute_form: IPv6 without brackets",
        "absolute_form: bracket that is not closed",
        "absolute_form: empty host with a port",
        "absolute_form: negative port",
        "absolute_form: port of letters",
        "host: IPv6 without brackets",
        "host: URL",
        "host: UTF-8",
        "host: angle brackets",
        "host: backslash",
        "host: bracket that is not closed",
        "host: bracket that is not opened",
        "host: escape of no digits",
        "host: fragment",
        "host: high byte",
        "host: invalid in HTTP/1.0",
        "host: list",
        "host: negative port",
        "host: no address in brackets",
        "host: path",
        "host: port of letters",
        "host: port with a space",
        "host: query",
        "host: quotes",
        "host: signed port",
        "host: space within",
        "host: tab within",
        "host: text behind the bracket",
        "host: two ports",
        "host: userinfo",
        "host: userinfo with a password",
    ],
    "The size limit does not hold for what arrives together with more, or is stripped.": [
        "chunks: extension over the limit",
        "fields: whitespace over the limit",
        "pipelining: valid before headers over the limit",
    ],
    "A target over the limit is refused with 431.": [
        "request_line: query over the limit",
        "request_line: target over the limit",
    ],
    "An unknown method is refused with 400.": [
        "request_line: method with every character of a token",
        "request_line: unknown method",
        "request_line: unknown method of 100 letters",
        "request_line: unknown method of one letter",
        "request_line: unknown method that begins like a known one",
        "request_line: unknown method that is the beginning of a known one",
    ],
    "A target in asterisk form is refused.": [
        "request_line: asterisk form of OPTIONS",
    ],
    "A CONNECT request with a URL is answered as if it were another method.": [
        "request_line: CONNECT with an absolute URL",
    ],
    "A bare CR in front of a request is ignored.": [
        "before_the_request: CR",
    ],
    "Whitespace around a semicolon or an equals sign of a chunk extension is refused.": [
        "chunks: space before the semicolon",
        "chunks: whitespace everywhere in an extension",
    ],
    "Whitespace behind a transfer coding is refused.": [
        "transfer_encoding: space behind it",
        "transfer_encoding: tab behind it",
    ],
    "A trailer Connection is obeyed, and the connection then neither answers nor closes.": [
        "chunks: trailer Connection",
    ],
    "What arrives together with an upgrade that is ignored is dropped.": [
        "upgrade: unknown protocol before a request",
    ],
    "An upgrade in HTTP/1.0 is accepted.": [
        "upgrade: WebSocket in HTTP/1.0",
    ],
    "100 is sent to a client of HTTP/1.0.": [
        "expect: 100-continue in HTTP/1.0",
    ],
    "A higher minor version is refused with 400.": [
        "version: higher minor version HTTP/1.2",
        "version: higher minor version HTTP/1.9",
    ],
}
WRONG: Final = {case: reason for reason, cases in FAILURES.items() for case in cases}
"""The reason of each failure, by the id of its case."""

BROKEN_RULES: Final = {
    "1xx and 204 have no length": "204 has a Content-Length (RFC 9110, 8.6).",
    "final responses have Date": "No response has a Date (RFC 9110, 6.6.1).",
}
"""What responses do, by the rule of `test_responses.py` that they break."""
