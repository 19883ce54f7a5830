"""Output of findings."""

import pytest

from trunkline.cli import printing
from trunkline.findings import Finding


def test_untrusted_text_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_findings([Finding("keys", "failed", "a\nb\x1b[2J", "\x9bc", "\u202ed é")])

    assert capsys.readouterr().out.splitlines() == [
        "failed   keys: a\\nb\\x1b[2J",
        "         Rule: \\x9bc",
        "         Fix: \\u202ed é",
    ]


def test_hop_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_findings([Finding("tool \x1b[31m\u202e", "ok", "seen")])
    assert capsys.readouterr().out == "ok       tool \\x1b[31m\\u202e: seen\n"
