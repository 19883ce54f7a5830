"""The matrix of features that have to work between us and the official SDKs.

Our method table defines the cells, so a new row without a probe is a failing test. A cell is a method and the side
that receives it, or a capability and the side that declares it.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trunkline.protocol.methods import METHODS, Method, Side
from trunkline.protocol.revisions import Revision

Cells = dict[str, dict[str, Any]]
"""The outcome of every cell: `{"ok": true}`, or `{"ok": false, "why": ...}`."""

Wire = list[dict[str, Any]]
"""All messages of a connection: `{"sender": "client", "message": ...}`."""


MODERN: Final = Revision.V2026_07_28
EMPTY: Final = {
    "notifications/progress to server": "a server asks nothing, so a client has no progress to tell of",
    "notifications/cancelled to client": "a server may only end a listen with it, which ours does when it stops: after "
    "the last probe, and over stdio alone",
}
"""Cells of the modern era that no probe can observe, and why."""


def cells(revision: Revision) -> Iterator[str]:
    """The cells of a revision: its methods, as far as they exist, and the capabilities."""
    for row in METHODS:
        if _offered(row, revision):
            for side in (Side.SERVER, Side.CLIENT):
                cell = f"{row.name} to {side.name.lower()}"
                if row.is_received_by(side) and not (revision is MODERN and cell in EMPTY):
                    yield cell
    yield "server tools.listChanged"
    yield "server resources.subscribe"
    yield "server resources.listChanged"
    yield "server prompts.listChanged"
    yield "server logging"
    if revision >= Revision.V2025_03_26:
        yield "server completions"
    yield "client sampling"
    yield "client roots" if revision is MODERN else "client roots.listChanged"
    if revision is Revision.V2025_06_18:
        yield "client elicitation"
    if revision >= Revision.V2025_11_25:  # which splits it in two
        yield "client elicitation.form"
        yield "client elicitation.url"


def _offered(row: Method, revision: Revision) -> bool:
    """Return whether the method exists: requests of older servers to a client become part of a result in later
    revisions.
    """
    asked = row.exists_in(revision) or (revision is MODERN and row.is_request and row.receiver is Side.CLIENT)
    return asked and "tasks" not in (row.capability or row.name)  # those have separate tests


class Outcome(NamedTuple):
    """The outcome of a run of the matrix."""

    matrix: Cells
    wire: Wire


def sent(wire: Wire) -> set[str]:
    """The methods on a connection, each with the receiving side: named like cells, without the notification that ends a
    listen.
    """
    other = {"client": "server", "server": "client"}
    messages = [(one["message"], other[one["sender"]]) for one in wire if isinstance(one["message"], dict)]
    listens = {message.get("id") for message, _ in messages if message.get("method") == "subscriptions/listen"}
    return {
        f"{message.get('method')} to {receiver}"
        for message, receiver in messages
        if receiver == "server" or message.get("params", {}).get("requestId") not in listens
    }


def declared(capabilities: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The declared capabilities, as paths: `tools.listChanged`, and `logging` where there is nothing below."""
    for name, value in capabilities.items():
        if isinstance(value, dict) and value:
            yield from declared(value, f"{prefix}{name}.")
        elif value is not False and value is not None:
            yield f"{prefix}{name}"


def shown(value: Any) -> str:
    """A value in the name of a test."""
    return value.value if isinstance(value, Revision) else getattr(value, "name", str(value))
