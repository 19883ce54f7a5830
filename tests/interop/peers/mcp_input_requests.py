"""Input requests of a server to clients of the modern era, within the response to their own request."""

from typing import Any

from mcp import types


class InputNeeded(Exception):
    """A tool needs input that has not arrived yet."""

    def __init__(self, request: Any) -> None:
        super().__init__(request.method)
        self.request = request


class Rounds:
    """A session that sends one input request in the modern way; all else is the session's."""

    def __init__(self, session: Any, answers: dict[str, Any]) -> None:
        self._session = session
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def _answer(self, request: Any) -> Any:
        if not self._answers:
            raise InputNeeded(request)
        return self._answers["question"]

    async def create_message(self, messages: list[Any], *, max_tokens: int, **_: Any) -> Any:
        params = types.CreateMessageRequestParams(messages=messages, max_tokens=max_tokens)
        return self._answer(types.CreateMessageRequest(params=params))

    async def elicit_form(self, message: str, form: dict[str, Any], _: Any) -> Any:
        params = types.ElicitRequestFormParams(message=message, requested_schema=form)
        return self._answer(types.ElicitRequest(params=params))

    async def elicit_url(self, message: str, url: str, _ident: str, _: Any) -> Any:
        return self._answer(types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=url)))

    async def list_roots(self) -> Any:
        return self._answer(types.ListRootsRequest())
