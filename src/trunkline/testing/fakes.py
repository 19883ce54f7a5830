"""A model and a user for tests: they give prepared answers and record the questions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from trunkline.client.elicitation import FormField, Question, UrlQuestion
from trunkline.protocol.types import CreateMessageParams, CreateMessageResult, ElicitResult
from trunkline.sampling.mock import MockModel, MockReply
from trunkline.sampling.provider import ProgressReporter

__all__ = ["FakeAnswer", "FakeForm", "FakeModel", "FakeUser"]

FakeAnswer = MockReply | Callable[[CreateMessageParams], MockReply]
"""What a fake model says: a text, content, a result, an error to raise, or a function of the request that returns one
of these."""

FakeForm = Mapping[str, Any] | Literal["decline", "cancel"] | None
"""What a fake user does with a form: the values of its fields, or no answer. None declines, too."""


class FakeModel:
    """A model that gives its answers in order: `connect(server, model=FakeModel(["Paris"]))`. Asked once more, it
    raises `AssertionError`.

    `requests` has the requests so far, and `prompts` their last messages as text.
    """

    supports_tools: bool = True

    def __init__(self, answers: Iterable[FakeAnswer] = (), *, model: str = "fake") -> None:
        self.requests: list[CreateMessageParams] = []
        self._answers = list(answers)
        self._model = model

    def __repr__(self) -> str:
        return f"<FakeModel: {len(self.requests)} of {len(self._answers)} answers given>"

    @property
    def prompts(self) -> list[str]:
        """The text of the last message of each request."""
        return [request.messages[-1].text if request.messages else "" for request in self.requests]

    @property
    def unused(self) -> int:
        """The number of answers that were not asked for."""
        return max(len(self._answers) - len(self.requests), 0)

    async def __call__(
        self, params: CreateMessageParams, context: ProgressReporter | None = None
    ) -> CreateMessageResult:
        """Return the next answer, or raise it if it is an error."""
        self.requests.append(params)
        if len(self.requests) > len(self._answers):
            raise AssertionError(
                f"the fake model has {len(self._answers)} answers, and this is request {len(self.requests)}: "
                f"{self.prompts[-1]!r}"
            )
        answer = self._answers[len(self.requests) - 1]
        reply = answer(params) if callable(answer) else answer
        return await MockModel(reply, model=self._model)(params, context)

    async def close(self) -> None:
        """Do nothing: there are no connections."""


class FakeUser:
    """A user that fills in forms: `connect(server, user=FakeUser({"name": "Ada"}))`.

    A mapping has the values of fields, for every form; a list has one answer for each form, in order. A field without a
    value keeps its default. If a required field has neither, or the list is too short, the user raises
    `AssertionError`.

    `questions` has the forms so far, `messages` their texts, and `urls` the pages that the server asked to open.
    """

    def __init__(self, answers: Mapping[str, Any] | Sequence[FakeForm] = (), *, opens_urls: bool = True) -> None:
        self.questions: list[Question] = []
        self.urls: list[UrlQuestion] = []
        self._answers = answers
        self._opens_urls = opens_urls

    def __repr__(self) -> str:
        return f"<FakeUser: {len(self.questions)} forms, {len(self.urls)} URLs>"

    @property
    def messages(self) -> list[str]:
        """The message of each form."""
        return [question.message for question in self.questions]

    async def __call__(self, question: Question) -> ElicitResult:
        """Fill in a form."""
        self.questions.append(question)
        answer = self._answer_to(question)
        if answer is None or isinstance(answer, str):
            return ElicitResult(answer or "decline")
        values = {field.name: answer[field.name] for field in question.fields if field.name in answer}
        if missing := [field.name for field in question.fields if _is_missing(field, values)]:
            raise AssertionError(f"the fake user has no value for {missing[0]!r} in the form {question.message!r}")
        return ElicitResult("accept", {**question.defaults, **values})

    def _answer_to(self, question: Question) -> FakeForm:
        if isinstance(self._answers, Mapping):
            return self._answers
        if len(self.questions) > len(self._answers):
            raise AssertionError(
                f"the fake user has {len(self._answers)} answers, and this is form {len(self.questions)}: "
                f"{question.message!r}"
            )
        return self._answers[len(self.questions) - 1]

    async def open_url(self, question: UrlQuestion) -> bool:
        """Agree to open a URL, or not; open nothing."""
        self.urls.append(question)
        return self._opens_urls


def _is_missing(field: FormField, values: Mapping[str, Any]) -> bool:
    return field.required and field.default is None and field.name not in values
