"""Every case of the corpus gets the verdict of a strict reading, however its bytes are split, on every event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest
from tests.http1.corpus import CASES, POST, PROBE, Case, ping
from tests.http1.known_failures import WRONG
from tests.http1.servers import LOOPS, Served, serving
from tests.http1.wire import Answer, Connection, cut
from tests.limits import PATIENCE

SHORT = 48  # bytes; a case of no more is split at every offset
SAMPLES = 4  # offsets of a longer case, besides those within its line ends
MOST_PIECES = 1000  # of one byte each
BRIEF = 1.0  # seconds for a case that is known to fail, and may do so by hanging


each_family = pytest.mark.parametrize("family", sorted({case.family for case in CASES}))


@pytest.fixture(scope="module", params=LOOPS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server, once on each kind of event loop."""
    with serving(request.param) as served:
        yield served


@each_family
def test_request_gets_its_verdict(served: Served, family: str) -> None:
    check(served, family, lambda case: judge(served.port, case, [case.data]))


@each_family
@pytest.mark.parametrize("served", ["asyncio"], indirect=True)
def test_verdict_does_not_depend_on_splits(served: Served, family: str) -> None:
    check(served, family, lambda case: judge_splits(served.port, case, split_offsets(case.data)))


@pytest.mark.long
@pytest.mark.timeout(3600)
@each_family
def test_verdict_does_not_depend_on_any_split(served: Served, family: str) -> None:
    check(served, family, lambda case: judge_splits(served.port, case, range(1, min(len(case.data), MOST_PIECES))))


def test_client_that_waits_gets_100_before_its_body(served: Served) -> None:
    async def wait_for_100() -> list[int]:
        async with Connection(served.port) as connection, asyncio.timeout(PATIENCE):
            await connection.send(POST + b"Content-Length: 40\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
            while not connection.answers:
                await connection.receive()
            before = connection.answers
            await connection.send(ping("1"))
            return [before[-1].status, *(answer.status for answer in await connection.receive_all())]

    assert served.run(wait_for_100()) == [100, 100, 200]


def test_corpus_has_every_known_failure_once() -> None:
    assert set(WRONG) <= {case.id for case in CASES}
    assert [name for name, times in Counter(case.id for case in CASES).items() if times > 1] == []
    assert len(CASES) >= 700


def check(served: Served, family: str, judge_case: Callable[[Case], Coroutine[Any, Any, None]]) -> None:
    """Judge all cases of a family; those that fail must be exactly those that are known to fail."""
    cases = [case for case in CASES if case.family == family]
    failures: dict[str, str] = {}
    for case in cases:
        try:
            served.run(judge_case(case))
        except AssertionError as error:
            failures[case.id] = str(error)
    assert {name: why for name, why in failures.items() if name not in WRONG} == {}, "these must not fail"
    assert [case.id for case in cases if case.id in WRONG and case.id not in failures] == [], "no longer known to fail"


async def judge(port: int, case: Case, pieces: Sequence[bytes]) -> None:
    """Send a case and compare the responses, and the fate of the connection, with the verdict."""
    patience = BRIEF if case.id in WRONG else PATIENCE
    async with Connection(port, head=case.head) as connection:
        try:
            async with asyncio.timeout(patience):
                answers, kept = await play(connection, case, pieces)
        except TimeoutError:
            statuses = [answer.status for answer in connection.answers]
            raise AssertionError(f"no end within {patience:g} s; responses so far: {statuses}") from None
    statuses = [answer.status for answer in answers]
    assert case.pattern.fullmatch(_text(answers)), f"{statuses} instead of {case.answers}"
    if case.then in {"close", "keep"}:
        assert kept is (case.then == "keep"), f"kept: {kept}, after {statuses}"
    if case.ids is not None:
        assert [answer.message_id for answer in answers if answer.message_id is not None] == case.ids


async def play(connection: Connection, case: Case, pieces: Sequence[bytes]) -> tuple[list[Answer], bool]:
    """Return the responses to a case, and whether the connection was kept: whether it answers one more request."""
    await connection.send(*pieces)
    if case.half_close:
        connection.half_close()
        return await connection.receive_all(), False
    while not (connection.ended or sum(answer.final for answer in connection.answers) >= case.least):
        await connection.receive()
    if case.then == "upgraded" and connection.answers and connection.answers[-1].status == 101:
        return connection.answers, False
    await connection.send(PROBE)
    while not (connection.ended or _is_probed(connection.answers)):
        await connection.receive()
    answers = connection.answers
    return (answers[:-1], True) if _is_probed(answers) else (answers, False)


def _text(answers: list[Answer]) -> str:
    return "".join(f"{answer.status} " for answer in answers)


def _is_probed(answers: list[Answer]) -> bool:
    return bool(answers) and answers[-1].message_id == "probe"


def split_offsets(data: bytes) -> list[int]:
    """Return offsets to split a case at: all of a short one; of others those within line ends, and some more."""
    if len(data) <= SHORT:
        return list(range(1, len(data)))
    ends = [at + 1 for at in range(len(data) - 1) if data[at : at + 2] == b"\r\n"]
    return sorted({*ends[:SAMPLES], *ends[-SAMPLES:], *range(1, len(data), len(data) // SAMPLES)})


async def judge_splits(port: int, case: Case, offsets: Sequence[int]) -> None:
    """Judge a case in two pieces, once for each offset, and then byte by byte."""
    ways = {f"split at {offset}": [offset] for offset in offsets}
    if len(case.data) <= MOST_PIECES:
        ways["byte by byte"] = range(1, len(case.data))
    for name, edges in ways.items():
        try:
            await judge(port, case, cut(case.data, edges))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
