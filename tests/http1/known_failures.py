"""Cases of the corpus that the server gets wrong, and rules that its responses break.

A listed case or rule that is no longer broken fails its test: remove it here then.
"""

from typing import Final

__all__ = ["BROKEN_RULES", "WRONG"]

FAILURES: Final[dict[str, list[str]]] = {
    "The parser refuses a tab behind a transfer coding.": ["transfer_encoding: tab behind it"],
}
WRONG: Final = {case: reason for reason, cases in FAILURES.items() for case in cases}
"""The reason of each failure, by the id of its case."""

BROKEN_RULES: Final[dict[str, str]] = {}
"""What responses do, by the rule of `test_responses.py` that they break."""
