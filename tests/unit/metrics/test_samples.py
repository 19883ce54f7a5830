"""Values of metrics in memory that processes share."""

import os
from collections.abc import Callable

import pytest

from trunkline.metrics import families as f
from trunkline.metrics import samples
from trunkline.metrics.samples import MetricsMemory, Sample


def in_child(action: Callable[[], object]) -> int:
    """Run an action in a forked process that ends without cleaning up; return its pid."""
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


def test_values_of_an_ended_process_stay_readable() -> None:
    memory = MetricsMemory(2)
    in_child(lambda: memory.writer(1).add(f.TOOL_CALLS, ("add", "ok"), 3))
    memory.writer(0).add(f.HANDLER_FAILURES)
    assert list(memory.read()) == [
        Sample(0, f.HANDLER_FAILURES, (), (1.0,)),
        Sample(1, f.TOOL_CALLS, ("add", "ok"), (3.0,)),
    ]


def test_successor_continues_counters_and_resets_gauges() -> None:
    memory = MetricsMemory()

    def work() -> None:
        writer = memory.writer(0)
        assert not writer.take_over(1.0)
        writer.add(f.TOOL_CALLS, ("add", "ok"))
        writer.set(f.SESSIONS, (), 7)
        writer.observe(f.TOOL_CALL_SECONDS, ("add",), 0.3)

    first = in_child(work)
    assert memory.state(0) == (first, 1.0)
    writer = memory.writer(0)
    assert writer.take_over(2.0)
    writer.add(f.TOOL_CALLS, ("add", "ok"))
    writer.observe(f.TOOL_CALL_SECONDS, ("add",), 0.3)
    values = {sample.family: sample.values for sample in memory.read()}
    assert values[f.TOOL_CALLS] == (2.0,)
    assert values[f.SESSIONS] == (0.0,)
    assert sum(values[f.TOOL_CALL_SECONDS][:-1]) == 2
    assert memory.state(0) == (os.getpid(), 2.0)


def test_process_that_serves_again_is_no_successor() -> None:
    writer = MetricsMemory().writer(0)
    assert not writer.take_over(1.0)
    assert not writer.take_over(2.0)


def test_bucket_includes_its_upper_bound() -> None:
    writer = MetricsMemory().writer(0)
    for value in (0.0, 0.0005, 0.00051, 60.0, 61.0):
        writer.observe(f.TOOL_CALL_SECONDS, ("add",), value)
    at, bounds = writer.find(f.TOOL_CALL_SECONDS, ("add",)), f.TOOL_CALL_SECONDS.buckets
    counts = list(writer.cells[at : at + len(bounds) + 1])
    assert counts == [2, 1, *[0] * (len(bounds) - 3), 1, 1]
    assert writer.cells[at + len(bounds) + 1] == pytest.approx(121.00101)


def test_labels_may_be_any_text() -> None:
    memory = MetricsMemory()
    labels = ('"quoted"\\\n', "naïve 名前 " * 20)
    memory.writer(0).add(f.TOOL_CALLS, labels)
    assert [sample.labels for sample in memory.read()] == [labels]


def test_full_memory_omits_series_and_counts_them() -> None:
    memory = MetricsMemory()
    writer, room = memory.writer(0), samples._SLOT_CELLS // f.TOOL_CALL_SECONDS.size
    for number in range(room):
        writer.observe(f.TOOL_CALL_SECONDS, (str(number),), 1.0)
    writer.observe(f.TOOL_CALL_SECONDS, ("0",), 1.0)
    found = list(memory.read())
    assert found[0].labels == ("0",)
    assert sum(found[0].values[:-1]) == 2
    assert {sum(sample.values[:-1]) for sample in found[1:-1]} == {1}
    assert found[-1] == Sample(0, f.SERIES_OMITTED, (), (room - len(found) + 1,))
    assert len(found) > room / 2
