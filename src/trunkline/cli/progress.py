"""A line of progress on standard error."""

from typing import TYPE_CHECKING, Final

from trunkline.cli.terminal import Terminal

if TYPE_CHECKING:
    from trunkline.protocol.types import ProgressParams

__all__ = ["ProgressLine"]

_BAR: Final = 24  # characters


class ProgressLine:
    """Shows the latest progress of a call."""

    def __init__(self, terminal: Terminal, title: str) -> None:
        self._terminal = terminal
        self._title = title

    def update(self, report: "ProgressParams") -> None:
        """Replace the line."""
        said = f"  {report.message}" if report.message else ""
        if report.total:
            share = min(max(report.progress / report.total, 0.0), 1.0)
            bar = "█" * round(share * _BAR)
            self._terminal.status(f"{self._title}  {bar:░<{_BAR}} {share:4.0%}{said}")
        else:
            self._terminal.status(f"{self._title}  {report.progress:g}{said}")
