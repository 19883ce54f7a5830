"""Error codes that a program may choose."""

from typing import Any

import pytest

from trunkline import ProtocolError, Refusal, Server
from trunkline.errors import MisuseError
from trunkline.testing import RawPeer


@pytest.mark.parametrize("code", [-32768, -32700, -32602, -32050, -32000, 1.5, "7", True])
def test_error_cannot_have_a_reserved_code(code: Any) -> None:
    with pytest.raises(MisuseError, match=r"reserves -32768 to -32000; choose an integer outside"):
        ProtocolError("no", code=code)


@pytest.mark.parametrize("code", [-32769, -31999, -3, 0, 7, 1005])
def test_error_may_have_any_unreserved_code(code: int) -> None:
    assert ProtocolError("no", code=code).code == code


def test_error_class_cannot_have_unused_reserved_code() -> None:
    with pytest.raises(MisuseError, match="-32050"):
        type("Mine", (ProtocolError,), {"code": -32050})
    for code in (-32602, 7):
        assert type("Mine", (ProtocolError,), {"code": code})("no").code == code


@pytest.mark.parametrize("code", [-32603, -3, 0, 1, 1000, 1001.0, True, "1001"])
def test_refusal_code_cannot_be_below_1001(code: Any) -> None:
    with pytest.raises(MisuseError, match=r"an integer from 1001 up, and from 1090 up for a reason of your own"):
        Refusal(code, "no")


def test_refusal_code_may_be_1001_or_above() -> None:
    assert [Refusal(code, "no").refusal_code for code in (1001, 1090, 100_000)] == [1001, 1090, 100_000]


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_illegal_code_never_reaches_peer(method: str) -> None:
    server = Server("errors", observers=[])

    @server.tool
    async def ask() -> None:
        raise Refusal(-3, "no")

    @server.prompt
    async def ask_for_prompt() -> str:
        raise ProtocolError("no", code=-32050)

    async with RawPeer(server) as peer:
        await peer.initialize()
        answer = await peer.request(method, {"name": "ask" if method == "tools/call" else "ask_for_prompt"})
    if method == "tools/call":
        assert answer["result"]["_meta"]["trunkline/error"]["kind"] == "tool_execution_failed"
    else:
        assert answer["error"]["code"] == -32603
