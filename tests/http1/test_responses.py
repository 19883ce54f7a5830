"""Every response to a case of the corpus keeps the rules of RFC 9110 and 9112 for servers."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest
from tests.http1.corpus import CASES, Case
from tests.http1.known_failures import BROKEN_RULES, WRONG
from tests.http1.servers import serving
from tests.http1.test_requests import play
from tests.http1.wire import Answer, Connection
from tests.limits import PATIENCE


class Exchange(NamedTuple):
    """What came of a case."""

    case: Case
    answers: list[Answer]
    kept: bool


@pytest.fixture(scope="module")
def exchanges() -> list[Exchange]:
    """All cases that get their verdict."""

    async def exchange(port: int, case: Case) -> Exchange:
        async with Connection(port, head=case.head) as connection, asyncio.timeout(PATIENCE):
            return Exchange(case, *await play(connection, case, [case.data]))

    with serving("asyncio") as served:
        return [served.run(exchange(served.port, case)) for case in CASES if case.id not in WRONG]


def _last_says_close(exchange: Exchange) -> bool:
    """Whether a connection that the server closes is announced (9112 9.6), and a kept one is not."""
    if exchange.case.half_close or not exchange.answers or exchange.answers[-1].status == 101:
        return True
    return exchange.answers[-1].closes is not exchange.kept


def _each(rule: Callable[[Answer], bool]) -> Callable[[Exchange], bool]:
    return lambda exchange: all(map(rule, exchange.answers))


RULES: Final[dict[str, Callable[[Exchange], bool]]] = {
    "the end of a connection is announced": _last_says_close,
    "405 has Allow": _each(lambda answer: answer.status != 405 or bool(answer.values("allow"))),
    "426 has Upgrade": _each(lambda answer: answer.status != 426 or bool(answer.values("upgrade"))),
    "101 names the protocol": _each(lambda answer: answer.status != 101 or bool(answer.values("upgrade"))),
    "1xx and 204 have no length": _each(
        lambda answer: (
            (answer.status >= 200 and answer.status != 204)
            or not (answer.values("content-length") or answer.values("transfer-encoding"))
        )
    ),
    "final responses have Date": _each(lambda answer: answer.status < 200 or len(answer.values("date")) == 1),
    "a body has a content type": _each(lambda answer: not answer.body or bool(answer.values("content-type"))),
    "TRACE is not reflected": _each(lambda answer: b"TRACE /" not in answer.body),
    "no header is repeated": _each(lambda answer: len({name for name, _ in answer.headers}) == len(answer.headers)),
}


def _as_parameter(rule: str) -> object:
    marks = [pytest.mark.xfail(reason=BROKEN_RULES[rule], strict=True)] if rule in BROKEN_RULES else []
    return pytest.param(rule, marks=marks)


@pytest.mark.parametrize("rule", [_as_parameter(rule) for rule in RULES])
def test_response_keeps_rule(exchanges: list[Exchange], rule: str) -> None:
    assert [exchange.case.id for exchange in exchanges if not RULES[rule](exchange)] == []
