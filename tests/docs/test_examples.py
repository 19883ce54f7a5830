"""Examples that are programs of their own: the tour, `make demo`, and a bridge to an HTTP service."""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Self
from urllib.parse import unquote

import pytest
from tests.docs.pages import PAGES, blocks
from tests.limits import PATIENCE

from trunkline import Client
from trunkline.errors import ToolFailed
from trunkline.transports.stdio.client import Command

EXAMPLES = Path(__file__).parents[2] / "examples"
TOUR = EXAMPLES / "tour.py"


def test_collector_uses_what_it_configures() -> None:
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((EXAMPLES / "observability/otel-collector.yaml").read_text("utf-8"))
    pipelines = config["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert {name for pipeline in pipelines for name in pipeline[kind]} == config[kind].keys()


@pytest.mark.row("PH52")
def test_tour_runs_without_terminal() -> None:
    done = subprocess.run(
        [sys.executable, str(TOUR)], check=False, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for point in (
        "greenhouse 1.0, speaking 2026-07-28",
        "greenhouse://beds/{bed}",
        "3/3",
        "warning, sensors: the bed of bell peppers is dry",
        "heard notifications/resources/updated",
        "watered tomatoes with 3 l",
        "spring, summer",
        "user: Make a planting plan for the bed of tomatoes in summer. It holds 65 % water now.",
        "Which seeds shall be ordered?",
        "ordered 3 packets of basil",
        "tool 'water' failed: there is no bed of roses",
        "lost 1 time, and still subscribed to greenhouse://log",
        "OutcomeUnknown: tools/call of 'water' was not answered",
        "the server process was killed by SIGKILL",
        "the next one says: 06:00 lights on",
        "page 6 by process",
        "printed 3 copies, job 1 of process",
        ", in the same session",
        "Closed",
    ):
        assert point in done.stdout


FEATURES = {
    "tools": "@server.tool",
    "resources": "@server.resource",
    "templates": "greenhouse://beds/{bed}",
    "subscriptions": "client.subscribe(",
    "prompts": "@server.prompt",
    "completion": "client.complete(",
    "progress": "on_progress=",
    "logging": "on_log=",
    "elicitation": "ctx.elicit(",
    "sampling": "ctx.sample(",
    "roots": "roots=",
    "tasks": "client.start_tool(",
    "idempotency keys": "idempotency_key=",
    "custom methods": "@server.method",
    "pausing": "server.pause",
    "authorization": "ResourceServer(",
}


@pytest.mark.row("PH52")
@pytest.mark.parametrize("feature", FEATURES)
def test_examples_show_every_feature(feature: str) -> None:
    programs = [file.read_text("utf-8") for file in EXAMPLES.glob("*.py")]
    snippets = [code for page in PAGES for _, code in blocks(page, "python")]  # all of which run, see test_snippets.py
    assert any(FEATURES[feature] in code for code in [*programs, *snippets])


class RateService:
    """A local HTTP service with the rates of some currencies, and the paths that it was asked for."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.asked: list[str] = []
        self.fails = False
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                rate = rates.get(unquote(self.path.removeprefix("/eur/")))
                body = json.dumps({"rate": rate}).encode()
                self.send_response(503 if service.fails else 200 if rate is not None else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/eur"

    def __enter__(self) -> Self:
        self._thread = Thread(target=self.server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.mark.row("A24", "PH52")
async def test_exchange_rates_come_from_http_service_or_database(tmp_path: Path) -> None:
    with RateService({"USD": 1.25, "ISK/old": 140.5}) as service:
        environment = {"RATES_URL": service.url, "RATES_DATABASE": str(tmp_path / "rates.db"), "no_proxy": "127.0.0.1"}
        async with Client(Command([sys.executable, str(EXAMPLES / "exchange_rates.py")], env=environment)) as client:

            async def convert(currency: str) -> str:
                return (await client.call_tool("convert", {"euros": 4, "currency": currency})).text

            fresh = await convert("USD")
            assert fresh.startswith("5.00 USD (rate of 20")
            assert (await convert("ISK/old")).startswith("562.00 ISK/old")
            with pytest.raises(ToolFailed, match="there is no currency XXX"):
                await convert("XXX")
            assert service.asked == ["/eur/USD", "/eur/ISK%2Fold", "/eur/XXX"]
            [stored] = await client.read_resource("rates://known")
            assert json.loads(stored.text or "") == {"ISK/old": 140.5, "USD": 1.25}

            service.fails = True
            assert await convert("USD") == fresh
            with pytest.raises(ToolFailed, match="the rate of GBP is not known: HTTP Error 503"):
                await convert("GBP")
            await convert("USD")
            asked = len(service.asked)
            assert await convert("USD") == fresh
            with pytest.raises(ToolFailed, match="its circuit breaker is open"):
                await convert("GBP")
            assert len(service.asked) == asked == 6
