"""Signatures of callables, whatever their annotations name."""

import sys

import pytest

from trunkline.errors import RegistrationError
from trunkline.registry.signatures import accepts_positional, hints_of, read_signature, signature_of


def quoted(value: "Missing", other: "Missing") -> "Missing":  # type: ignore[name-defined]  # noqa: F821
    """Take two values of a type that only a type checker knows."""


def test_parameters_are_counted_without_evaluating_annotations() -> None:
    assert accepts_positional(quoted, 2)
    assert not accepts_positional(quoted, 1)
    assert [*signature_of(quoted, "quoted").parameters] == ["value", "other"]


def test_unknown_name_in_an_annotation_is_a_registration_error() -> None:
    with pytest.raises(RegistrationError, match="names something that is not defined"):
        hints_of(quoted, "quoted")


if sys.version_info >= (3, 14):  # annotations are not evaluated at the definition

    def test_deferred_annotations_are_not_evaluated_either() -> None:
        scope: dict[str, object] = {}
        exec("def take(value: Missing): ...", scope)
        take = scope["take"]
        assert [*read_signature(take).parameters] == ["value"]  # type: ignore[arg-type]
        assert accepts_positional(take, 1)  # type: ignore[arg-type]
        with pytest.raises(RegistrationError, match="names something that is not defined"):
            hints_of(take, "take")  # type: ignore[arg-type]


def test_callable_without_a_signature_is_refused() -> None:
    with pytest.raises(RegistrationError, match="its signature cannot be read"):
        signature_of(dict.fromkeys.__self__, "dict")
