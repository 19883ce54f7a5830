"""The providers: OpenAI, Anthropic, Ollama and LM Studio."""

from collections.abc import Sequence
from typing import Final, Unpack

from trunkline.sampling.anthropic_format import Messages
from trunkline.sampling.api_key import ApiKey, KeySource
from trunkline.sampling.http_provider import HttpProvider, ProviderOptions
from trunkline.sampling.model_choice import Model
from trunkline.sampling.ollama_format import OllamaChat
from trunkline.sampling.openai_format import ChatCompletions

__all__ = ["Anthropic", "LMStudio", "Ollama", "OpenAI"]

_CLOUD_TIMEOUT: Final = 60.0  # seconds
_LOCAL_TIMEOUT: Final = 120.0  # a model on this machine may have to be loaded first


class OpenAI(HttpProvider):
    """Models of OpenAI, and of servers with its chat completions API."""

    def __init__(
        self,
        model: str | Model | Sequence[str | Model],
        *,
        api_key: KeySource | None = None,
        base_url: str = "https://api.openai.com/v1",
        timeout: float | None = _CLOUD_TIMEOUT,
        **options: Unpack[ProviderOptions],
    ) -> None:
        """`model` is a name, or a list of models from which the preferences of a request choose. `api_key` is the key,
        or a function, plain or async, that returns it; by default, `OPENAI_API_KEY` has it. `timeout` are the seconds
        for one message, with all attempts."""
        wire_format = ChatCompletions("OpenAI", limit_member="max_completion_tokens", audio=True)
        key = ApiKey(api_key, "OpenAI", "OPENAI_API_KEY")
        super().__init__("OpenAI", wire_format, model, key, base_url=base_url, timeout=timeout, **options)


class Anthropic(HttpProvider):
    """Models of Anthropic."""

    def __init__(
        self,
        model: str | Model | Sequence[str | Model],
        *,
        api_key: KeySource | None = None,
        base_url: str = "https://api.anthropic.com",
        timeout: float | None = _CLOUD_TIMEOUT,
        **options: Unpack[ProviderOptions],
    ) -> None:
        """Takes the options of `OpenAI`. By default, `ANTHROPIC_API_KEY` has the key."""
        key = ApiKey(api_key, "Anthropic", "ANTHROPIC_API_KEY")
        wire_format = Messages("Anthropic")
        super().__init__("Anthropic", wire_format, model, key, base_url=base_url, timeout=timeout, **options)


class Ollama(HttpProvider):
    """Models that Ollama runs, by default on this machine."""

    def __init__(
        self,
        model: str | Model | Sequence[str | Model],
        *,
        api_key: KeySource | None = None,
        base_url: str = "http://localhost:11434",
        timeout: float | None = _LOCAL_TIMEOUT,
        **options: Unpack[ProviderOptions],
    ) -> None:
        """Takes the options of `OpenAI`. A key is not needed."""
        key = ApiKey(api_key, "Ollama")
        super().__init__("Ollama", OllamaChat("Ollama"), model, key, base_url=base_url, timeout=timeout, **options)


class LMStudio(HttpProvider):
    """Models that LM Studio runs, by default on this machine."""

    def __init__(
        self,
        model: str | Model | Sequence[str | Model],
        *,
        api_key: KeySource | None = None,
        base_url: str = "http://localhost:1234/v1",
        timeout: float | None = _LOCAL_TIMEOUT,
        **options: Unpack[ProviderOptions],
    ) -> None:
        """Takes the options of `OpenAI`. A key is not needed."""
        wire_format = ChatCompletions("LM Studio", limit_member="max_tokens", audio=False)
        key = ApiKey(api_key, "LM Studio")
        super().__init__("LM Studio", wire_format, model, key, base_url=base_url, timeout=timeout, **options)
