"""No byte sequence that both h11 and the server accept is read differently: how many requests there are, and what each is.

The server shows how it has read a request by its answer: an answer to a part of a sequence must be the same as the answer
to what h11 has read there, sent in its plainest form on a connection of its own. Method, target, headers and body are
compared as far as they matter to the answer; `echo` and `ping` return what is in the body.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

import pytest
from tests.http1.corpus import POST, ping
from tests.http1.grammar import make_sequence
from tests.http1.known_failures import WRONG
from tests.http1.reference import Reading, ReadRequest, read
from tests.http1.servers import serving
from tests.http1.wire import Answer, Connection
from tests.limits import PATIENCE

SEQUENCES: Final = 1_000
MANY_SEQUENCES: Final = 200_000
AT_ONCE: Final = 16  # connections
ENOUGH: Final = 10  # differences, to end a run
REFUSALS: Final = {400, 408, 413, 414, 417, 431, 501, 505}
SILENT: Final = "pipelining: valid before garbage" in WRONG  # a refusal costs the answers before it
NOT_JSON: Final = b"-32700"  # the code of a body that was read, and is no JSON


class Difference(Exception):
    """A sequence that is read differently."""


class Verdict(NamedTuple):
    """How far h11 and the server agree on a sequence."""

    agreed: int  # requests
    outcome: str


class Comparison:
    """Compares a server with h11."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._plain: dict[bytes, Answer] = {}  # answers to requests in their plainest form
        self.outcomes: Counter[str] = Counter()
        self.agreed = 0
        self.differences: list[str] = []

    async def compare(self, data: bytes, *, plain: bool) -> None:
        """Send a sequence, and compare the answers with what h11 reads. A plain one must be answered to its end."""
        reading, answers = read(data), await self._answers(data)
        try:
            verdict = await self._judge(reading, answers)
            if plain and verdict != (len(reading.requests), "read alike"):
                raise Difference(f"a valid sequence was not answered: {verdict}")
        except Difference as difference:
            given = [(answer.status, answer.body[:80]) for answer in answers]
            self.differences.append(f"{difference}\n  bytes: {data!r}\n  h11: {reading}\n  answers: {given}")
            return
        self.agreed += verdict.agreed
        self.outcomes[verdict.outcome] += 1

    async def _answers(self, data: bytes) -> list[Answer]:
        """Return all final answers to a sequence."""
        async with Connection(self._port) as connection, asyncio.timeout(PATIENCE):
            await connection.send(data)
            connection.half_close()
            return [answer for answer in await connection.receive_all() if answer.final]

    async def _judge(self, reading: Reading, answers: list[Answer]) -> Verdict:
        for index, answer in enumerate(answers):
            refused = answer.status in REFUSALS and answer is answers[-1] and NOT_JSON not in answer.body
            if answer.status == 101:
                return Verdict(index, "upgraded")
            if index < len(reading.requests):
                if await self._is_alike(reading.requests[index], answer):
                    continue
                if refused:
                    return Verdict(index, "refused by the server")
                raise Difference(f"request {index} is read differently")
            if refused:
                return Verdict(index, "refused by both" if reading.refused else "refused by the server")
            if reading.refused:
                return Verdict(index, "refused by h11")
            return Verdict(index, self._judge_surplus(reading, answer, is_last=answer is answers[-1]))
        return Verdict(len(answers), self._judge_end(reading, answers))

    async def _is_alike(self, request: ReadRequest, answer: Answer) -> bool:
        """Return whether the server has read what h11 has read. This is the place to compare more than answers."""
        return answer._replace(headers=[]) == await self._answer_to(request)

    def _judge_surplus(self, reading: Reading, answer: Answer, *, is_last: bool) -> str:
        """Judge an answer to more than h11 has read."""
        unfinished = reading.unfinished
        if unfinished is not None and is_last and (answer.status >= 400 or unfinished.method != b"POST"):
            return "answered before the end"  # not all endpoints read a body
        if reading.closed and reading.requests[-1].version == b"1.0":
            return "kept in HTTP/1.0"  # which h11 never does
        raise Difference(f"{answer.status} is the answer to a request that h11 does not see")

    def _judge_end(self, reading: Reading, answers: list[Answer]) -> str:
        """Judge the end of the connection behind all answers."""
        if len(answers) == len(reading.requests):
            return "refused in silence by both" if reading.refused else "read alike"
        if answers and answers[-1].closes:
            return "closed by the server"
        if not SILENT:
            raise Difference(f"request {len(answers)} is not answered")
        return "refused in silence"

    async def _answer_to(self, request: ReadRequest) -> Answer:
        """Return the answer to a request in its plainest form, without headers."""
        data = request.serialize()
        if data not in self._plain:
            self._plain[data] = (await self._answers(data))[0]._replace(headers=[])
        return self._plain[data]


async def _compare_many(port: int, seed: int, sequences: int) -> Comparison:
    """Compare many sequences, some of them at once."""
    comparison = Comparison(port)
    numbers = iter(range(sequences))

    async def compare_some() -> None:
        for number in numbers:
            if len(comparison.differences) >= ENOUGH:
                return
            sequence = make_sequence(Random(f"{seed}/{number}"))
            await comparison.compare(sequence.data, plain=sequence.plain)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(compare_some())
    return comparison


def _run(loop: str, seed: int, sequences: int) -> None:
    with serving(loop) as served:
        comparison = served.run(_compare_many(served.port, seed, sequences))
    print(f"{sequences} sequences, {comparison.agreed} requests read alike: {dict(comparison.outcomes)}")
    assert not comparison.differences, "\n".join(comparison.differences)
    assert comparison.agreed > sequences / 2
    assert comparison.outcomes["read alike"] > sequences / 4


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_sequence_is_read_differently_from_h11(loop: str, seed: int) -> None:
    _run(loop, seed, SEQUENCES)


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        pytest.param(lambda request: request._replace(body=request.body + b"x"), "read differently", id="body"),
        pytest.param(lambda request: request._replace(target=b"/other"), "read differently", id="target"),
        pytest.param(lambda request: request._replace(method=b"PUT"), "read differently", id="method"),
        pytest.param(lambda _: None, "does not see", id="number"),
    ],
)
def test_planted_difference_is_found(
    planted: Callable[[ReadRequest], ReadRequest | None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misread(data: bytes, read: Callable[[bytes], Reading] = read) -> Reading:
        *others, last = (reading := read(data)).requests
        return reading._replace(requests=[*others, *filter(None, [planted(last)])])

    monkeypatch.setitem(globals(), "read", misread)
    request = POST + b"Content-Length: 40\r\n\r\n" + ping("1")
    with serving("asyncio") as served:
        comparison = Comparison(served.port)
        served.run(comparison.compare(request + request, plain=True))
    assert [found in difference for difference in comparison.differences] == [True]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_no_sequence_of_many_is_read_differently_from_h11(seed: int) -> None:
    _run("uvloop", seed, MANY_SEQUENCES)
