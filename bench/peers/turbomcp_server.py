"""The benchmark's server on turbomcp: tools only, plain functions only, run in the reading loop without validation."""

from handlers import Plain, echo_sync, extra_names
from turbomcp import TurboMCP, serve_stdio

registry = TurboMCP("bench")
for tool in (Plain.echo, echo_sync, Plain.add):
    registry.register(tool, name=tool.__name__)
for name in extra_names(own=3):
    registry.register(Plain.extra, name=name)

serve_stdio(registry)
