"""Choose one of the configured models by the preferences of a request."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from trunkline.errors import ConfigError
from trunkline.protocol.types import ModelPreferences

__all__ = ["Model", "choose_model", "parse_models"]

_Rating = Annotated[float, Meta(ge=0, le=1)]


class Model(Struct, frozen=True):
    """A model of a provider, rated from 0 to 1 in comparison with the other configured models.

    `aliases` are other names that a hint may contain, such as the name of a similar model of another provider.
    """

    name: Annotated[str, Meta(min_length=1)]
    cheapness: _Rating = 0.5
    speed: _Rating = 0.5
    intelligence: _Rating = 0.5
    aliases: tuple[str, ...] = ()


def parse_models(given: Any) -> tuple[Model, ...]:
    """Return the configured models: a name, a `Model`, or a list of these. Raise `ConfigError` for anything else."""
    listed: Any = [given] if isinstance(given, str | Model) else given
    try:
        models = tuple(Model(one) if isinstance(one, str) else one for one in listed)
        valid = bool(models) and all(isinstance(one, Model) for one in models)
        parsed = msgspec.convert([msgspec.to_builtins(one) for one in models], tuple[Model, ...]) if valid else ()
    except msgspec.ValidationError as error:
        raise ConfigError(f"a model is not valid: {error}; its ratings are numbers from 0 to 1") from None
    except TypeError:
        parsed = ()
    if not parsed:
        raise ConfigError('model= is the name of a model, such as "gpt-5", a Model, or a list of these')
    return parsed


def choose_model(models: Sequence[Model], preferences: ModelPreferences | None) -> Model:
    """Return the model for a request.

    Hints are tried in order, as parts of model names and aliases; the first that matches wins (sampling, "Model
    Preferences"). Among the models that it matches, or all if none does, the priorities decide, and then the order of
    the configuration.
    """
    if preferences is None:
        return models[0]
    for hint in preferences.hints or ():
        if hint.name and (matching := [model for model in models if _matches(model, hint.name.lower())]):
            return _rank(matching, preferences)
    return _rank(models, preferences)


def _matches(model: Model, hint: str) -> bool:
    return any(hint in name.lower() for name in (model.name, *model.aliases))


def _rank(models: Sequence[Model], preferences: ModelPreferences) -> Model:
    cost, speed = preferences.cost_priority or 0.0, preferences.speed_priority or 0.0
    intelligence = preferences.intelligence_priority or 0.0
    return max(
        models, key=lambda model: cost * model.cheapness + speed * model.speed + intelligence * model.intelligence
    )
