"""Validate the messages of one side of a connection, each against the schema of its revision.

A request of the modern era names its revision, and messages that refer to the request have the same one: its
response, a notification with its progress token or subscription id, its cancellation. All other messages have the
revision that the handshake negotiated; without a handshake, they are modern once a modern message has passed.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from tests import official

from trunkline.protocol.meta import PROGRESS_TOKEN, PROTOCOL_VERSION, SUBSCRIPTION_ID

Side = Literal["server", "client"]
MODERN = "2026-07-28"
BEFORE_THE_HANDSHAKE = "2025-11-25"


def check_transcript(frames: Iterable[tuple[str, bytes]], side: Side) -> None:
    """Raise AssertionError unless all messages of this side are valid."""
    line = TranscriptState(side)
    for speaker, frame in frames:
        if speaker == side:
            line.check(frame)
        line.record(speaker, frame)


class TranscriptState:
    """State of a transcript: what earlier messages say about those that follow."""

    def __init__(self, side: Side) -> None:
        self._side: Side = side
        self._asked: dict[tuple[str, Any], str] = {}  # methods, by requester and request id
        self._modern: set[Any] = set()  # ids of the client's requests that carry an envelope
        self._tokens: set[Any] = set()  # their progress tokens
        self._negotiated: str | None = None  # set as soon as initialize is sent

    def check(self, frame: bytes) -> None:
        """Validate a message of the side under test."""
        other = "client" if self._side == "server" else "server"
        answers = {ident: method for (asker, ident), method in self._asked.items() if asker == other}
        messages = list(_messages(frame))
        revision = self._revision(messages[0]) if len(messages) == 1 else self._usual
        official.check(frame, revision=revision, sender=self._side, answers=answers)

    def record(self, speaker: str, frame: bytes) -> None:
        """Record what a message says about later ones."""
        for message in _messages(frame):
            ident = message.get("id")
            if not isinstance(ident, int | str):
                continue
            if isinstance(message.get("method"), str):
                self._record_request(speaker, message)
            elif speaker == "server" and self._asked.get(("client", ident)) == "initialize" and "result" in message:
                self._negotiated = message["result"].get("protocolVersion")

    def _record_request(self, speaker: str, request: dict[str, Any]) -> None:
        ident, meta = request["id"], _meta(request)
        self._asked[speaker, ident] = request["method"]
        if request["method"] == "initialize":
            self._negotiated = self._negotiated or BEFORE_THE_HANDSHAKE
        if speaker == "client":
            self._modern.discard(ident)
            if PROTOCOL_VERSION in meta:
                self._modern.add(ident)
                self._tokens.add(meta.get(PROGRESS_TOKEN))

    @property
    def _usual(self) -> str:
        return self._negotiated or (MODERN if self._modern else BEFORE_THE_HANDSHAKE)

    def _revision(self, message: dict[str, Any]) -> str:
        if message.get("method") == "initialize":
            return self._negotiated or BEFORE_THE_HANDSHAKE
        return MODERN if self._belongs_to_modern(message) else self._usual

    def _belongs_to_modern(self, message: dict[str, Any]) -> bool:
        meta, params = _meta(message), message.get("params") or {}
        match message.get("method"):
            case None:
                return self._side == "server" and message.get("id") in self._modern
            case "notifications/cancelled":
                return params.get("requestId") in self._modern
            case "notifications/progress":
                return params.get("progressToken") in self._tokens
            case _:
                return PROTOCOL_VERSION in meta or SUBSCRIPTION_ID in meta


def _messages(frame: bytes) -> Iterator[dict[str, Any]]:
    """The messages in a frame that can be decoded."""
    try:
        value = json.loads(frame)
    except (ValueError, RecursionError):
        return
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield item


def _meta(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}
