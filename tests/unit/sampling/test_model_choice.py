"""The choice of a model by the preferences of a request."""

import pytest
from tests.unit.sampling.model_server import DIALECTS, Turn, asked, serving

from trunkline.errors import ConfigError
from trunkline.protocol.types import ModelHint, ModelPreferences
from trunkline.sampling import Model
from trunkline.sampling.model_choice import choose_model, parse_models

SMALL = Model("acme-small-2", cheapness=0.9, speed=0.8, intelligence=0.2)
LARGE = Model("acme-large-2", cheapness=0.1, speed=0.3, intelligence=0.9, aliases=("claude-opus",))
FAST = Model("acme-turbo", cheapness=0.5, speed=1.0, intelligence=0.4)
MODELS = (SMALL, LARGE, FAST)


def wanted(*hints: str | None, cost: float | None = None, speed: float | None = None, mind: float | None = None):
    named = [ModelHint(hint) for hint in hints] or None
    return ModelPreferences(named, cost_priority=cost, speed_priority=speed, intelligence_priority=mind)


@pytest.mark.row("SMP-08")
@pytest.mark.parametrize(
    ("preferences", "model"),
    [
        (None, SMALL),
        (wanted(), SMALL),
        (wanted("large"), LARGE),
        (wanted("LARGE"), LARGE),
        (wanted("gpt", "turbo", "large"), FAST),  # the first hint that matches
        (wanted("claude-opus"), LARGE),
        (wanted("claude"), LARGE),
        (wanted("gpt"), SMALL),  # a hint is no demand
        (wanted(None, ""), SMALL),
        (wanted("-2"), SMALL),
        (wanted("-2", mind=1), LARGE),  # priorities decide among those that match
        (wanted("small", mind=1), SMALL),  # a hint outranks priorities
        (wanted(cost=1), SMALL),
        (wanted(speed=1), FAST),
        (wanted(mind=1), LARGE),
        (wanted(cost=0, speed=0, mind=0), SMALL),
    ],
)
def test_preferences_choose_model(preferences: ModelPreferences | None, model: Model) -> None:
    assert choose_model(MODELS, preferences) is model


async def test_request_names_the_chosen_model() -> None:
    async with serving(DIALECTS[0], Turn(["x"])) as server:
        provider = server.provider(["small", Model("large", intelligence=0.9)])
        assert (await provider(asked())).model == "small"
        assert (await provider(asked(model_preferences=wanted(mind=1)))).model == "large"
        assert repr(provider).endswith(": 'small', 'large'>")
        await provider.close()


def test_models_are_names_or_models() -> None:
    assert parse_models("a") == parse_models(["a"]) == parse_models(Model("a")) == (Model("a"),)
    assert parse_models(["a", SMALL]) == (Model("a"), SMALL)


@pytest.mark.parametrize("given", [None, [], 5, [5], "", [Model("x", speed=2)], [Model("x", cheapness=-1)]])
def test_invalid_models_are_refused(given: object) -> None:
    with pytest.raises(ConfigError):
        parse_models(given)
