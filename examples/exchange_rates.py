"""A bridge to an HTTP service and a database: exchange rates, fetched from the one and remembered in the other.

RATES_URL=https://rates.example/eur RATES_DATABASE=rates.db python examples/exchange_rates.py
"""

import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from trunkline import BreakerOpen, Context, Server, ToolAnnotations, ToolError

SERVICE = os.environ.get("RATES_URL", "http://127.0.0.1:8080/eur")
DATABASE = os.environ.get("RATES_DATABASE", "rates.db")
TABLE = "CREATE TABLE IF NOT EXISTS rates (currency TEXT PRIMARY KEY, rate REAL, at TEXT)"

server = Server("exchange rates", version="1.0")
server.breaker("service", failures=3, open_seconds=30)  # after three failures, the service is left alone for a while


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def convert(euros: float, currency: str, ctx: Context) -> str:
    """Converts euros to another currency, by the last known rate if the service does not answer."""
    with closing(sqlite3.connect(DATABASE)) as database, database:
        database.execute(TABLE)
        try:
            with ctx.breaker("service"):
                rate, at = fetch(currency), f"{datetime.now(UTC):%Y-%m-%d}"
        except (OSError, BreakerOpen) as error:
            found = database.execute("SELECT rate, at FROM rates WHERE currency = ?", [currency]).fetchone()
            if found is None:
                raise ToolError(f"the rate of {currency} is not known: {error}") from error
            rate, at = found
        else:
            database.execute("INSERT OR REPLACE INTO rates VALUES (?, ?, ?)", [currency, rate, at])
    return f"{euros * rate:.2f} {currency} (rate of {at})"


def fetch(currency: str) -> float:
    """Ask the service for a rate. A plain handler runs on a thread, so that it may block."""
    try:
        with urlopen(f"{SERVICE}/{quote(currency, safe='')}", timeout=10) as response:
            return float(json.load(response)["rate"])
    except HTTPError as error:
        if error.code == 404:
            raise ToolError(f"there is no currency {currency}") from error
        raise


@server.resource("rates://known", mime_type="application/json")
def known() -> dict[str, float]:
    """The rates in the database."""
    with closing(sqlite3.connect(DATABASE)) as database, database:
        database.execute(TABLE)
        return dict(database.execute("SELECT currency, rate FROM rates ORDER BY currency"))


if __name__ == "__main__":
    server.run()
