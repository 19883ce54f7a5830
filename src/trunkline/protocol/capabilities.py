"""Capabilities: declaration, negotiation and lookup.

Capabilities are open objects: unknown members are preserved and ignored. A path such as `resources.subscribe` names a
member; the member is on if it is present and neither false nor null.

A server answers `initialize` with its own capabilities. Clients do not declare server features, so a missing feature is
not a refusal; only a feature that the client sets to false is removed. Under a profile the answer is the intersection:
a feature that the client does not declare is removed, too.

Negotiated capabilities hold for the session and are shared between sessions, so they are frozen, at every depth.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.errors import InvalidParams
from trunkline.protocol.projection import WINDOWS
from trunkline.protocol.revisions import Revision
from trunkline.protocol.types import ClientCapabilities, ServerCapabilities

__all__ = [
    "Capabilities",
    "NegotiatedCapabilities",
    "freeze",
    "intersect_capabilities",
    "is_declarable",
    "is_declared",
    "negotiate_capabilities",
    "restrict_to_revision",
]

Capabilities = Mapping[str, Any]

_WINDOWS: Final = {**WINDOWS["ServerCapabilities"], **WINDOWS["ClientCapabilities"]}
_MEMBERS: Final = {
    "roots": {"listChanged": WINDOWS["RootsCapability"]["list_changed"]},  # wire name
    "sampling": WINDOWS["SamplingCapability"],
    "elicitation": WINDOWS["ElicitationCapability"],
}


def _refuse_change(self: Any, *_: Any, **__: Any) -> Any:
    raise TypeError(f"{self!r} is read-only: capabilities are agreed once, in the handshake")


class _FrozenDict(dict[str, Any]):
    """A dict without mutators. It is a dict, so that it is encoded and compared as one."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return _FrozenDict, (dict(self),)


class _FrozenList(list[Any]):
    """A list without mutators."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return _FrozenList, (list(self),)


def freeze(capabilities: Capabilities) -> Capabilities:
    """Return read-only capabilities, at every depth; the same object if they are."""
    return _frozen(capabilities)


def _frozen(value: Any) -> Any:
    if isinstance(value, _FrozenDict | _FrozenList):
        return value
    if isinstance(value, Mapping):
        return _FrozenDict({name: _frozen(member) for name, member in cast("Capabilities", value).items()})
    return _FrozenList(map(_frozen, cast("list[Any]", value))) if isinstance(value, list) else value


class NegotiatedCapabilities(Struct, frozen=True):
    """The capabilities of both sides after the handshake, read-only."""

    server: Capabilities
    client: Capabilities  # as declared, including unknown members

    def __post_init__(self) -> None:
        force_setattr(self, "server", freeze(self.server))
        force_setattr(self, "client", freeze(self.client))

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


_NONE: Final = freeze({})


def is_declared(capabilities: Capabilities, path: str) -> bool:
    """Return whether a capability is on. `elicitation` without a mode means forms (elicitation, "Capabilities")."""
    value: Any = capabilities
    for name in path.split("."):
        if type(value) is not dict and not isinstance(value, Mapping):  # the second check is slow
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


def intersect_capabilities(
    negotiated: NegotiatedCapabilities, *, add: Iterable[str] = (), experimental: str = ""
) -> NegotiatedCapabilities:
    """Return the capabilities that both sides declare. The members of a feature are those of the server; experimental
    capabilities are compared by name.

    The server declares the features in `add` if the client does, and confirms the capability `experimental`.
    """
    client = negotiated.client
    mine = {
        name: value
        for name, value in {**dict.fromkeys(add, _NONE), **negotiated.server}.items()
        if is_declared(client, name) and name != "experimental"
    }
    names = _experimental(client)
    common = {name: value for name, value in negotiated.server.get("experimental", _NONE).items() if name in names}
    if experimental in names:
        common[experimental] = {}
    return NegotiatedCapabilities({**mine, "experimental": common} if common else mine, client)


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
