"""A bounded part of `make fuzz`, with a seed that is the same every time."""

import pytest
from tests.fuzz.run import FuzzError, run

from trunkline.wire import codec

SEED = 20251125
SECONDS = 3.0


async def test_mutated_conversations_neither_crash_nor_hang_a_server() -> None:
    assert await run(SEED, SECONDS) > 10


async def test_a_planted_fault_is_found_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(frame: object) -> object:
        if isinstance(frame, bytes) and b"\xff" in frame:
            raise ValueError("planted")
        return read(frame)

    read = codec.decode
    monkeypatch.setattr(codec, "decode", decode)
    with pytest.raises(FuzzError, match=rf"planted\n  again: python -m tests.fuzz.run --seed {SEED} --case \d+"):
        await run(SEED, 30.0)
