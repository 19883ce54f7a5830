"""The table of refusals."""

from typing import Any

import pytest

from trunkline import Refusal, Server, Settings
from trunkline.errors import REFUSALS, MisuseError, RefusalCode, RetryAdvice, register_refusal
from trunkline.errors.refusals import FIRST_OWN_REFUSAL, format_hint
from trunkline.testing import RawPeer

FIXED = [info for info in REFUSALS.values() if info.code < FIRST_OWN_REFUSAL]


@pytest.mark.row("X29")
def test_table_lists_every_reason_once() -> None:
    assert [info.code for info in FIXED] == sorted(map(int, RefusalCode))
    assert {info.name for info in FIXED} == {code.name.lower() for code in RefusalCode}
    assert [info.code for info in FIXED][:10] == list(range(1001, 1011))
    assert {info.http_status for info in FIXED} <= {400, 401, 403, 404, 409, 413, 415, 429, 501, 503}


@pytest.mark.row(
    "E1011", "E1012", "E1013", "E1014", "E1015", "E1016", "E1021", "E1022", "E1023", "E1024", "E1025", "E1026",
    "E1027", "E1028", "E1029", "E1036", "E1037", "E1038", "E1039", "E1040", "E1046", "E1047", "E1048", "E1049",
    "E1050", "E1051", "E1052", "E1056", "E1057", "E1058", "E1059", "E1060", "E1066", "E1067", "E1068", "E1069",
    "E1070", "E1076", "E1077", "E1078", "E1079", "E1080", "E1086", "E1087", "E1088", "E1089",
)  # fmt: skip
@pytest.mark.parametrize("info", FIXED, ids=lambda info: info.name)
def test_refusal_takes_name_and_message_from_the_table(info: Any) -> None:
    refusal = Refusal(info.code)
    assert (refusal.refusal_code, refusal.message, refusal.data["name"]) == (info.code, info.message, info.name)
    hinted = refusal.with_hint(Settings())
    assert hinted.data["hint"]
    assert "{" not in hinted.data["hint"]


def test_hint_states_the_limits_of_the_server() -> None:
    assert format_hint(RefusalCode.CONCURRENCY_LIMIT_EXCEEDED, Settings(max_connections=17)) == (
        "close unused connections; a listener accepts 17"
    )
    hint = format_hint(RefusalCode.OPERATION_TIMEOUT, Settings(work_timeout=2.5, longest_call=None))
    assert hint == "request less; seconds that a call may take: 2.5 without progress, and no limit in all"


def test_statuses_that_mean_overload_say_when_to_repeat() -> None:
    assert {info.retry for info in FIXED if info.http_status == 429} == {RetryAdvice.AFTER_DELAY}
    assert {info.retry for info in FIXED if info.http_status == 401} <= {RetryAdvice.AFTER_LOGIN, RetryAdvice.NEVER}


@pytest.mark.parametrize("code", [-3, 0, 1000, 1017, 1030, 1089.0, True, "1001", None])
def test_number_without_meaning_is_refused(code: Any) -> None:
    with pytest.raises(MisuseError, match=r"an integer from 1001 up, and from 1090 up for a reason of your own"):
        Refusal(code)


def test_own_reason_can_be_registered() -> None:
    assert Refusal(90_001).data["name"] == "custom_refusal_reason"
    register_refusal(
        90_001, "closed_on_mondays", message="closed on Mondays", hint="wait {work_timeout} s", http_status=503
    )
    refusal = Refusal(90_001).with_hint(Settings(work_timeout=3))
    assert (refusal.message, refusal.data["hint"]) == ("closed on Mondays", "wait 3 s")
    for code, name in ((90_001, "other"), (90_002, "closed_on_mondays"), (90_002, "not a name"), (1001, "other")):
        with pytest.raises(MisuseError):
            register_refusal(code, name, message="no")
    with pytest.raises(MisuseError, match="no meaning"):
        register_refusal(1017, "other", message="no")


def test_details_travel_with_the_refusal() -> None:
    refusal = Refusal(RefusalCode.QUOTA_EXCEEDED, details={"quota": 5}, retry_after=1.5)
    assert (refusal.data["quota"], refusal.data["retryAfterMs"], refusal.data["kind"]) == (5, 1500, "quota_exceeded")


@pytest.mark.row("E1010")
async def test_reason_of_a_handler_reaches_the_caller() -> None:
    server = Server("shop")

    @server.tool
    async def order() -> None:
        raise Refusal(1010, "closed on Sundays")

    async with RawPeer(server) as peer:
        await peer.initialize()
        result = await peer.result("tools/call", {"name": "order"})
    assert (result["isError"], result["content"][0]["text"]) == (True, "closed on Sundays")
    assert result["_meta"]["trunkline/refusal"]["code"] == 1010


async def test_hint_is_filled_in_for_every_method() -> None:
    server = Server("strict", settings=Settings(max_calls=3))

    @server.tool
    async def refuse() -> None:
        raise Refusal(RefusalCode.RESOURCE_CONSTRAINTS)

    @server.prompt
    async def decline() -> str:
        raise Refusal(RefusalCode.RESOURCE_CONSTRAINTS)

    async with RawPeer(server) as peer:
        await peer.initialize()
        result = (await peer.request("tools/call", {"name": "refuse"}))["result"]
        error = await peer.error("prompts/get", {"name": "decline"})
    refusal = result["_meta"]["trunkline/refusal"]
    assert (refusal["code"], refusal["name"]) == (1004, "resource_constraints")
    assert error["code"] == 1004
    assert refusal["hint"] == error["data"]["hint"]
    assert "runs 3 at a time" in refusal["hint"]
