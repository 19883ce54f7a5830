"""`OpenTelemetry`: the observer that makes spans and metrics of requests."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from trunkline.errors import MisuseError
from trunkline.facts import CallEnded, CallStep, Closed, Fact, HandlerFailed, RequestEnded, TaskRunEnded

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from trunkline.observers.otel.spans import Step

__all__ = ["OpenTelemetry"]

_MAX_FOLLOWED: Final = 10_000  # requests whose steps are collected; facts about the end of one may have been dropped
_TRACE_FACTS: Final = (CallEnded, RequestEnded, TaskRunEnded, HandlerFailed)
_METRIC_FACTS: Final = (CallEnded, RequestEnded, Closed)


class OpenTelemetry:
    """Makes spans and metrics of requests by the semantic conventions of OpenTelemetry for MCP.

    Pass it to servers, clients and proxies, as an observer. A span starts with its request, so that it is the parent of
    the spans of the handler. It ends on the thread of the observer, where the processors and exporters of the SDK run:
    no request waits for them, or fails with them.
    """

    def __init__(
        self,
        *,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
        traces: bool = True,
        metrics: bool = True,
        steps: bool = False,
    ) -> None:
        """The providers are those of your SDK, by default the global ones. `traces=False` and `metrics=False` leave one
        of the two out. `steps` adds an event to the span of a request for each of its steps, such as "decoded"."""
        try:
            from trunkline.observers.otel.metrics import Durations
            from trunkline.observers.otel.spans import OtelTracer
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] != "opentelemetry":
                raise
            raise MisuseError(
                "OpenTelemetry needs the library opentelemetry-api: pip install 'trunkline[otel]'"
            ) from error
        self.tracer = OtelTracer(tracer_provider) if traces else None
        self._durations = Durations(meter_provider) if metrics else None
        self._steps: OrderedDict[tuple[int, int | str], list[Step]] = OrderedDict()  # by connection and request
        wanted = dict.fromkeys((*(_TRACE_FACTS if traces else ()), *(_METRIC_FACTS if metrics else ())))
        self.wants: tuple[type[Fact], ...] = (*wanted, CallStep) if traces and steps else tuple(wanted)

    def on(self, fact: Fact) -> None:
        """End the span of a request, and record its duration."""
        match fact:
            case CallEnded():
                span = None if self.tracer is None else self.tracer.end_call(fact, self._take_steps(fact))
                if self._durations is not None:
                    self._durations.record_call(fact, None if span is None else span.context)
            case CallStep():
                self._add_step(fact)
            case RequestEnded():
                span = None if self.tracer is None else self.tracer.end_request(fact)
                if self._durations is not None:
                    self._durations.record_request(fact, None if span is None else span.context)
            case TaskRunEnded() if self.tracer is not None:
                self.tracer.end_task_run(fact)
            case HandlerFailed() if self.tracer is not None:
                self.tracer.record_exception(fact)
            case Closed() if self._durations is not None:
                self._durations.record_session(fact)
            case _:
                pass

    def _add_step(self, fact: CallStep) -> None:
        self._steps.setdefault((fact.connection, fact.request), []).append((fact.step, fact.seconds))
        if len(self._steps) > _MAX_FOLLOWED:
            self._steps.popitem(last=False)

    def _take_steps(self, fact: CallEnded) -> "Sequence[Step]":
        key: Any = (fact.connection, fact.request)
        return self._steps.pop(key, ()) if self._steps else ()
