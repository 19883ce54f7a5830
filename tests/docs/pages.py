"""The pages of the manual, and the code blocks in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a page in one language, each with the line that it begins on."""
    text = page.read_text("utf-8")
    found = [block for block in FENCE.finditer(text) if block["language"] == language]
    return [(text.count("\n", 0, block.start("code")), block["code"]) for block in found]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))
