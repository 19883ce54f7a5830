"""What each side declares, what was agreed upon, and what a method needs.

Capabilities are open objects: members that nobody here knows are kept and ignored. A path such as
`resources.subscribe` names a member; it is on when it is there and neither false nor null.

A server answers `initialize` with what it offers itself. Clients do not declare server features, so what they
leave unsaid takes nothing away; only what a client turns off in so many words is left out.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from trunkline.errors import InvalidParams
from trunkline.protocol.projection import WINDOWS
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import (
    ClientCapabilities,
    ElicitationCapability,
    RootsCapability,
    SamplingCapability,
    ServerCapabilities,
)

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
_WINDOWS: Final = {**WINDOWS[ServerCapabilities], **WINDOWS[ClientCapabilities]}
_MEMBERS: Final = {
    "roots": {"listChanged": WINDOWS[RootsCapability]["list_changed"]},  # as it is on the wire
    "sampling": WINDOWS[SamplingCapability],
    "elicitation": WINDOWS[ElicitationCapability],
}


class NegotiatedCapabilities(Struct, frozen=True):
    """What was agreed upon in the handshake."""

    server: Capabilities
    client: Capabilities  # as declared, with everything we do not know

    @property
    def experimental(self) -> frozenset[str]:
        """The names of the experimental capabilities that both sides have."""
        return _experimental(self.server) & _experimental(self.client)

    @property
    def server_typed(self) -> ServerCapabilities:
        """The server's side, typed."""
        return msgspec.convert(self.server, ServerCapabilities)

    @property
    def client_typed(self) -> ClientCapabilities:
        """The client's side, typed."""
        return msgspec.convert(self.client, ClientCapabilities)


def is_declared(capabilities: Capabilities, path: str) -> bool:
    """Whether a capability is on. `elicitation` without a mode means forms (elicitation, "Capabilities")."""
    value: Any = capabilities
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return False
        value = cast("Capabilities", value).get(name)
        if value is None or value is False:
            return False
    return True


def is_declarable(path: str, revision: Revision) -> bool:
    """Whether a revision has a name for a capability. What has none cannot be declared, and goes without saying."""
    window = _WINDOWS.get(path.split(".", 1)[0])
    return window is None or window.covers(revision)


def negotiate_capabilities(offered: Capabilities, requested: Capabilities) -> NegotiatedCapabilities:
    """What a server that offers this and a client that declares that have in common.

    Raises `InvalidParams` for a declaration that is not one.
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
    return NegotiatedCapabilities(
        offered if mine == offered else mine, requested or _NONE
    )  # what is the same is kept once


def restrict_to_revision(
    capabilities: Capabilities, revision: Revision, *, keep: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Capabilities without those that a revision has no name for, except `keep`. Its methods may be there all the same.

    Before elicitation had modes it was about forms: whoever has none does not declare it then.
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
    """An offered feature without the flags that the client turns off."""
    if not isinstance(offered, dict) or not isinstance(requested, Mapping):
        return cast("Any", offered)
    wanted = cast("Capabilities", requested)
    return {flag: on for flag, on in cast("dict[str, Any]", offered).items() if wanted.get(flag) is not False}


def _experimental(capabilities: Capabilities) -> frozenset[str]:
    names = capabilities.get("experimental")
    return frozenset(cast("Capabilities", names)) if isinstance(names, Mapping) else frozenset()
