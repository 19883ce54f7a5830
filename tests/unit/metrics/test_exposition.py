"""The text of Prometheus, read by the parser of its Python client."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trunkline.metrics import families as f
from trunkline.metrics.exposition import render
from trunkline.metrics.families import FAMILIES, Family
from trunkline.metrics.samples import MetricsMemory


def parse(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the values by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_family_is_parsed_with_its_type_help_and_labels(family: Family) -> None:
    memory = MetricsMemory()
    labels = tuple(f"of {name}" for name in family.labels)
    if family.kind == "histogram":
        memory.writer(0).observe(family, labels, 0.3)
    else:
        memory.writer(0).add(family, labels)
    (parsed,) = text_string_to_metric_families(render(memory.read(), {0}))
    assert parsed.name == family.name.removesuffix("_total")
    assert parsed.type == family.kind
    assert parsed.documentation == family.help
    named = {*family.labels, *(["worker"] if family.per_worker else []), *(["le"] if family.buckets else [])}
    assert parsed.samples[0].labels.keys() == named


def test_names_follow_the_conventions() -> None:
    for family in FAMILIES.values():
        assert family.name.startswith("trunkline_")
        assert family.name.endswith("_total") is (family.kind == "counter")
        assert family.help.endswith(".")
        assert "le" not in family.labels
        assert "worker" not in family.labels


def test_label_values_are_escaped() -> None:
    memory, name = MetricsMemory(), 'a "quoted"\\ name\nof two lines'
    memory.writer(0).add(f.TOOL_CALLS, (name, "ok"))
    assert parse(render(memory.read(), ())) == {
        "trunkline_tool_calls_total": {(("outcome", "ok"), ("tool", name)): 1.0},
    }


def test_histogram_is_cumulated() -> None:
    memory = MetricsMemory()
    for seconds in (0.0001, 0.0008, 0.002, 100.0):
        memory.writer(0).observe(f.CALL_WAIT_SECONDS, ("tcp",), seconds)
    found = parse(render(memory.read(), ()))
    buckets = {dict(labels)["le"]: count for labels, count in found["trunkline_call_wait_seconds_bucket"].items()}
    assert [buckets[bound] for bound in ("0.0005", "0.001", "0.0025", "60", "+Inf")] == [1, 2, 3, 3, 4]
    assert found["trunkline_call_wait_seconds_count"] == {(("transport", "tcp"),): 4}
    assert found["trunkline_call_wait_seconds_sum"] == {(("transport", "tcp"),): pytest.approx(100.0029)}


def test_counters_of_all_slots_and_gauges_of_live_ones_are_added_up() -> None:
    memory = MetricsMemory(3)
    for slot in range(3):
        memory.writer(slot).add(f.HANDLER_FAILURES, (), 10**slot)
        memory.writer(slot).set(f.SESSIONS, (), 10**slot)
        memory.writer(slot).set(f.MEMORY_BYTES, (), 10**slot)
    found = parse(render(memory.read(), {0, 2}))
    assert found["trunkline_handler_failures_total"] == {(): 111}
    assert found["trunkline_sessions"] == {(): 101}
    assert found["trunkline_resident_memory_bytes"] == {(("worker", "0"),): 1, (("worker", "2"),): 100}


def test_nothing_measured_is_an_empty_page() -> None:
    assert render((), {0}) == ""
