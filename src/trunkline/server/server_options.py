"""Validation of the constructor options of `Server`."""

from collections.abc import Mapping
from typing import Any, Final

from trunkline.config import Settings
from trunkline.errors import RegistrationError
from trunkline.errors.options import FUNCTION, MAPPING, TEXT, OptionKind, describe_value, each_value, instance_of
from trunkline.rpc.dispatch import Feature

__all__ = ["OPTION_KINDS", "check_callback"]


def _has_member(member: str, words: str, *, secret: bool = False) -> OptionKind:
    """Return the kind of instances (not classes) that have a member."""

    def fit(value: Any) -> bool:
        return hasattr(value, member) and not isinstance(value, type)

    return OptionKind(words, fit, secret)


_CAPABILITY_FLAG: Final = instance_of(
    "True or False: whether the capability is declared; functions are added by decorators, such as @server.tool", bool
)

OPTION_KINDS: Final[Mapping[str, OptionKind]] = {
    **dict.fromkeys(("version", "title", "description", "website_url", "instructions"), TEXT),
    **dict.fromkeys(
        ("tools", "resources", "prompts", "completions", "logging", "subscribe", "list_changed"), _CAPABILITY_FLAG
    ),
    **dict.fromkeys(("experimental", "extensions", "cache"), MAPPING),
    "expose_errors": instance_of("True or False", bool),
    "settings": instance_of("a Settings, such as Settings(page_size=50)", Settings),
    "auth": _has_member("within", "a ResourceServer(…), which says whose tokens are taken", secret=True),
    "store": _has_member("lasting", 'a store, such as SqliteStore("notes.db")'),
    "sampling": _has_member("supports_tools", 'a provider, such as OpenAI(model="gpt-5") of trunkline.sampling'),
    "receipts": _has_member("segment_bytes", 'a Receipts, such as Receipts("receipts", key="receipts.key")'),
    "observers": each_value(lambda one: hasattr(one, "on") and not isinstance(one, type), "a list of observers"),
    "features": each_value(lambda one: isinstance(one, Feature), "a list of features"),
    "validator": FUNCTION,
    "clock": _has_member("call_at", "a clock, such as ManualClock()"),
}


def check_callback(what: str, function: Any) -> None:
    """Raise `RegistrationError` for a callback that is not callable."""
    if not callable(function):
        raise RegistrationError(f"{what} takes a function, not {describe_value(function)}")
