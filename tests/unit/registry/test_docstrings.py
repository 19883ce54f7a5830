"""Docstrings: the description and a sentence for each argument, in three styles."""

import pytest

from trunkline.registry.docstrings import Docstring, parse

ARGUMENTS = {"path": "Where to look. Relative paths too.", "depth": "How deep."}


def test_missing_docstring_is_empty() -> None:
    assert parse(None) == Docstring("", {})
    assert parse("") == Docstring("", {})


def test_multi_paragraph_description_is_preserved() -> None:
    text = """Finds files.

        It looks everywhere:
            and deeper still.

        Note that it is slow."""

    assert parse(text) == Docstring(
        "Finds files.\n\nIt looks everywhere:\n    and deeper still.\n\nNote that it is slow.", {}
    )


GOOGLE = """Finds files.

    Args:
        path (str, optional): Where to look.
            Relative paths too.
        depth: How deep.

    Returns:
        path: The files.

    Raises:
        OSError: If there are none.
    """

NUMPY = """Finds files.

    Parameters
    ----------
    path : str, optional
        Where to look.

        Relative paths too.
    depth
        How deep.

    Returns
    -------
    list
        The files.
    """

SPHINX = """Finds files.

    :param str path: Where to look.
        Relative paths too.
    :param depth: How deep.
    :type depth: int
    :returns: The files.
    :raises OSError: If there are none.
        Or too many.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_styles_are_equivalent(text: str) -> None:
    assert parse(text) == Docstring("Finds files.", ARGUMENTS)


@pytest.mark.parametrize(
    "title", ["Args", "Arguments", "Parameters", "Params", "Keyword Arguments", "Other Parameters"]
)
def test_google_section_has_several_titles(title: str) -> None:
    assert parse(f"Finds.\n\n{title}:\n    path: Where.").arguments == {"path": "Where."}


def test_google_arguments_may_be_indented_by_two() -> None:
    text = "Finds.\n\nArgs:\n  path: Where to look,\n    for example: here.\n  depth: How deep."

    assert parse(text).arguments == {"path": "Where to look, for example: here.", "depth": "How deep."}


def test_google_types_may_have_parentheses() -> None:
    text = "Finds.\n\nArgs:\n    size (tuple(int, int)): How large.\n    **options: More."

    assert parse(text).arguments == {"size": "How large.", "options": "More."}


def test_line_at_margin_is_description() -> None:
    text = "Finds.\n\nArgs:\n    path: Where.\n\nIt is slow.\n\n:param depth: How deep.\n\nIt is old."

    assert parse(text) == Docstring("Finds.\n\nIt is slow.\n\nIt is old.", {"path": "Where.", "depth": "How deep."})


def test_google_line_without_name_is_ignored() -> None:
    assert parse("Finds.\n\nArgs:\n    see above\n    path: Where.") == Docstring("Finds.", {"path": "Where."})


def test_numpy_describes_several_arguments_at_once() -> None:
    text = "Moves.\n\nParameters\n----------\nx, y : float\n    A coordinate.\n*rest\n    Others."

    assert parse(text).arguments == {"x": "A coordinate.", "y": "A coordinate.", "rest": "Others."}


def test_sphinx_argument_has_several_field_names() -> None:
    text = "Finds.\n\n:arg a: A.\n:key dict[str, int] b: B.\n:parameter *c: C.\n:keyword d: D: or not."

    assert parse(text).arguments == {"a": "A.", "b": "B.", "c": "C.", "d": "D: or not."}


def test_unknown_sphinx_field_is_description() -> None:
    assert parse(":memory: is a database.\n\n:param : nothing.") == Docstring(
        ":memory: is a database.\n\n:param : nothing.", {}
    )


def test_arguments_without_description_are_omitted() -> None:
    assert parse("Finds.\n\nParameters\n----------\npath : str\ndepth : int\n    Deep.").arguments == {"depth": "Deep."}
    assert parse("Finds.\n\nArgs:\n    path:\n").arguments == {}


def test_single_word_is_no_section_title() -> None:
    assert parse("Returns\nthe first of them.").description == "Returns\nthe first of them."
