"""What the whole suite stands on: every message that a server or client of ours sends in a test is judged by the
official schema."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests import official

from trunkline.testing import RawPeer, ScriptedServer, Transcript


@pytest.fixture(autouse=True)
def wire_truth(request: pytest.FixtureRequest) -> Iterator[list[Transcript]]:
    """Judges the transcripts of all lines that a test has closed, once the test itself has passed."""
    transcripts: list[Transcript] = []
    of_clients: list[Transcript] = []
    RawPeer.taps.append(transcripts.append)
    ScriptedServer.taps.append(of_clients.append)
    yield transcripts
    RawPeer.taps.remove(transcripts.append)
    ScriptedServer.taps.remove(of_clients.append)
    if request.node.get_closest_marker("off_the_record") is None:
        for transcript in transcripts:
            judge(transcript)
        for transcript in of_clients:
            judge_client(transcript)


def judge(transcript: Transcript) -> None:
    """Checks every message of the server's against the schema of the revision that was negotiated on its line."""
    methods: dict[Any, str] = {}
    revision = "2025-11-25"
    for speaker, frame in transcript.frames:
        if speaker == "client":
            methods.update(_requests_in(frame))
            continue
        message = json.loads(frame)
        if isinstance(message, dict) and methods.get(message.get("id")) == "initialize" and "result" in message:
            revision = message["result"]["protocolVersion"]
        official.check(frame, revision=revision, sender="server", answers=methods)


def judge_client(transcript: Transcript) -> None:
    """Checks every message of the client's, in the same way."""
    methods: dict[Any, str] = {}
    asked: set[Any] = set()  # ids of initialize
    revision = "2025-11-25"
    for speaker, frame in transcript.frames:
        if speaker == "client":
            official.check(frame, revision=revision, sender="client", answers=methods)
            asked |= {ident for ident, method in _requests_in(frame).items() if method == "initialize"}
            continue
        methods.update(_requests_in(frame))
        with contextlib.suppress(ValueError, TypeError, KeyError):
            message = json.loads(frame)
            if message["id"] in asked:
                revision = message["result"]["protocolVersion"]


def _requests_in(frame: bytes) -> dict[Any, str]:
    """The ids and methods of the requests in a frame, as far as it can be read."""
    try:
        value = json.loads(frame)
    except (ValueError, RecursionError):
        return {}
    items = value if isinstance(value, list) else [value]
    return {
        item["id"]: item["method"]
        for item in items
        if isinstance(item, dict) and isinstance(item.get("id"), int | str) and isinstance(item.get("method"), str)
    }
