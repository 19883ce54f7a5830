"""Questions of a server to its user and to a model, answered at the terminal."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from trunkline.cli.terminal import Terminal, escape, escape_lines
from trunkline.client.elicitation import FormField, Question, UrlQuestion
from trunkline.errors import MisuseError
from trunkline.protocol.types import CreateMessageParams, CreateMessageResult, ElicitResult, TextContent

__all__ = ["TerminalAnswers"]

_YES: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class _Declined(Exception):
    """The user has ended the input."""


class TerminalAnswers:
    """Callbacks of a client that ask the person at the terminal. They block, so the client runs them on a thread."""

    def __init__(self, terminal: Terminal, server: Callable[[], str]) -> None:
        self._terminal = terminal
        self._server = server

    # --- forms -----------------------------------------------------------------------------------

    def elicit(self, question: Question) -> ElicitResult:
        """Ask for every field of a form, until each answer fits."""
        terminal = self._terminal
        terminal.note(f"{escape(self._server())} asks: {escape_lines(question.message)}")
        terminal.note("(empty: the default, or nothing; end of input: decline)")
        try:
            filled = {field.name: value for field in question.fields if (value := self._fill(field)) is not None}
        except _Declined:
            return ElicitResult("decline")
        return ElicitResult("accept", {**question.defaults, **filled})

    def _fill(self, field: FormField) -> Any:
        while True:
            answer = self._terminal.ask(_prompt(field))
            if answer is None:
                raise _Declined
            if not answer:
                if field.default is not None or not field.required:
                    return None
                self._terminal.note("This field is required.")
                continue
            try:
                return _read(field, answer.strip())
            except MisuseError as error:
                self._terminal.note(str(error))

    def open_url(self, question: UrlQuestion) -> bool:
        """Show a URL and ask whether to open it; the browser opens it if so."""
        self._terminal.note(f"{escape(self._server())} asks you to open a page: {escape_lines(question.message)}")
        self._terminal.note(f"  {escape(question.url)}\n  on the host {escape(question.host)}")
        answer = self._terminal.ask("Open it? [y/N] ")
        if answer is None or not _YES.get(answer.strip().lower(), False):
            return False
        import webbrowser

        webbrowser.open(question.url)
        return True

    # --- sampling --------------------------------------------------------------------------------

    def sample(self, params: CreateMessageParams) -> CreateMessageResult:
        """Show a conversation and take the model's next message from the user."""
        terminal = self._terminal
        terminal.note(f"{escape(self._server())} asks a model; answer in its place.")
        if params.system_prompt:
            terminal.note(f"  system: {escape_lines(params.system_prompt)}")
        for message in params.messages:
            for block in _as_list(message.content):
                text = block.text if isinstance(block, TextContent) else f"[{type(block).__name__}]"
                terminal.note(f"  {message.role}: {escape_lines(text)}")
        answer = terminal.ask("assistant: ")
        if answer is None:
            raise MisuseError("the user declined to answer")
        return CreateMessageResult("assistant", TextContent(answer), "human", "endTurn")


def _as_list(content: Any) -> Sequence[Any]:
    return cast("list[Any]", content) if isinstance(content, list) else [content]


def _prompt(field: FormField) -> str:
    kind = {"yes_no": "y/n", "choice": "number or value", "choices": "several, with commas"}.get(field.kind, field.kind)
    lines = [f"  {escape(field.title)}{'' if field.required else ' (optional)'}"]
    if field.description:
        lines.append(f"    {escape(field.description)}")
    lines.extend(f"    {at}. {escape(choice.title)}" for at, choice in enumerate(field.choices, 1))
    default = "" if field.default is None else f", default {escape(str(field.default))}"
    return "\n".join([*lines, f"    [{kind}{default}] "])


def _read(field: FormField, answer: str) -> Any:
    """Return the value of an answer. Raises `MisuseError` if it does not fit the field."""
    match field.kind:
        case "yes_no":
            if answer.lower() not in _YES:
                raise MisuseError("Answer y or n.")
            return _YES[answer.lower()]
        case "integer" | "number":
            try:
                return int(answer) if field.kind == "integer" else float(answer)
            except ValueError:
                raise MisuseError(
                    f"{escape(answer)} is not {'an integer' if field.kind == 'integer' else 'a number'}."
                ) from None
        case "choice":
            return _choose(field, answer)
        case "choices":
            return [_choose(field, part.strip()) for part in answer.split(",") if part.strip()]
        case "text":
            return answer


def _choose(field: FormField, answer: str) -> str:
    if answer.isdecimal() and 1 <= int(answer) <= len(field.choices):
        return field.choices[int(answer) - 1].value
    for choice in field.choices:
        if answer in {choice.value, choice.title}:
            return choice.value
    raise MisuseError(f"Choose one of 1 to {len(field.choices)}.")
