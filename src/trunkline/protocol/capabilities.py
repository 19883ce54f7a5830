"""Capabilities: declaration, negotiation and lookup.

Capabilities are open objects: unknown members are preserved and ignored. A path such as `resources.subscribe` names a
member; the member is on if it is present and neither false nor null.

A server answers `initialize` with its own capabilities. Clients do not declare server features, so a missing feature is
not a refusal; only a feature that the client sets to false is removed.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from trunkline.errors import InvalidParams
from trunkline.protocol.projection import WINDOWS
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import ClientCapabilities, ServerCapabilities

__all__ = [
    "Capabilities",
    "NegotiatedCapabilities",
    "is_declarable",
    "is_declared",
    "negotiate_capabilities",
    "restrict_to_revision",
]

Capabilities = Mapping[str, Any]

_NONE: Final[Capabilities] = {}
_WINDOWS: Final = {**WINDOWS["ServerCapabilities"], **WINDOWS["ClientCapabilities"]}
_MEMBERS: Final = {
    "roots": {"listChanged": WINDOWS["RootsCapability"]["list_changed"]},  # wire name
    "sampling": WINDOWS["SamplingCapability"],
    "elicitation": WINDOWS["ElicitationCapability"],
}


class NegotiatedCapabilities(Struct, frozen=True):
    """The capabilities of both sides after the handshake."""

    server: Capabilities
    client: Capabilities  # as declared, including unknown members

    @property
    def experimental(self) -> frozenset[str]:
        """The names of the experimental capabilities that both sides have."""
        return _experimental(self.server) & _experimental(self.client)

    @property
    def server_typed(self) -> ServerCapabilities:
        """The server's capabilities as a typed object."""
        return msgspec.convert(self.server, ServerCapabilities)

    @property
    def client_typed(self) -> ClientCapabilities:
        """The client's capabilities as a typed object."""
        return msgspec.convert(self.client, ClientCapabilities)


def is_declared(capabilities: Capabilities, path: str) -> bool:
    """Return whether a capability is on. `elicitation` without a mode means forms (elicitation, "Capabilities")."""
    value: Any = capabilities
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return False
        value = cast("Capabilities", value).get(name)
        if value is None or value is False:
            return False
    return True


def is_declarable(path: str, revision: Revision) -> bool:
    """Return whether a revision has a name for a capability. A capability without a name cannot be declared, and is
    implied."""
    window = _WINDOWS.get(path.split(".", 1)[0])
    return window is None or window.covers(revision)


def negotiate_capabilities(offered: Capabilities, requested: Capabilities) -> NegotiatedCapabilities:
    """Return the capabilities of a server and a client after negotiation.

    Raise `InvalidParams` for malformed client capabilities.
    """
    try:
        msgspec.convert({k: v for k, v in requested.items() if v is not False}, ClientCapabilities)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"client capabilities are malformed: {error}") from None
    mine = {
        name: _without_disabled(value, requested.get(name))
        for name, value in offered.items()
        if requested.get(name) is not False
    }
    return NegotiatedCapabilities(offered if mine == offered else mine, requested or _NONE)  # shares equal objects


def restrict_to_revision(
    capabilities: Capabilities, revision: Revision, *, keep: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return capabilities without those that a revision does not define, except `keep`. Their methods may exist anyway.

    Before elicitation had modes it meant forms, so a client without forms does not declare it then.
    """
    known = {
        name: on
        for name, on in capabilities.items()
        if name not in _WINDOWS or name in keep or _WINDOWS[name].covers(revision)
    }
    for feature, windows in _MEMBERS.items():
        members: Any = known.get(feature)
        if isinstance(members, Mapping):
            named = cast("Capabilities", members)
            kept = {name: on for name, on in named.items() if name not in windows or windows[name].covers(revision)}
            known[feature] = kept
            if named.keys() - kept.keys() == {"url"}:
                del known[feature]
    return known


def _without_disabled(offered: Any, requested: Any) -> Any:
    """Return an offered feature without the flags that the client sets to false."""
    if not isinstance(offered, dict) or not isinstance(requested, Mapping):
        return cast("Any", offered)
    flags = cast("Capabilities", requested)
    return {flag: on for flag, on in cast("dict[str, Any]", offered).items() if flags.get(flag) is not False}


def _experimental(capabilities: Capabilities) -> frozenset[str]:
    names = capabilities.get("experimental")
    return frozenset(cast("Capabilities", names)) if isinstance(names, Mapping) else frozenset()
