"""Write CHANGELOG.md from the files in changes/: `make docs`. With --check, only compare;
--notes prints those of one release.

Files directly in changes/ belong to the next release; a folder there is named after the release whose notes it holds.
The first paragraph of a file becomes one entry. Needs Python alone, no environment.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Changelog

One entry for each change that a user can notice, newest first. The linked pages say what to do about it.
Built from [changes](changes) by `make docs`; do not edit it by hand.
"""


def entries(folder: Path) -> list[str]:
    """Return one entry for each change file in a folder, newest first."""
    files = sorted((file for file in folder.glob("[0-9]*.md")), reverse=True)
    return [f"- {first_paragraph(file)} ([more]({file.relative_to(ROOT).as_posix()}))" for file in files]


def first_paragraph(file: Path) -> str:
    """Return the first paragraph of a change file on one line."""
    return re.sub(r"\s+", " ", file.read_text("utf-8").strip().partition("\n\n")[0])


def changelog(changes: Path) -> str:
    """Return the whole page."""
    releases = sorted((folder for folder in changes.iterdir() if folder.is_dir()), reverse=True)
    sections = [("Unreleased", changes), *((folder.name, folder) for folder in releases)]
    parts = [f"## {title}\n\n" + "\n".join(entries(folder)) + "\n" for title, folder in sections]
    return "\n".join([HEAD, *parts])


def release_notes(version: str | None) -> str | None:
    """Return the notes of a release, or of the next one for None; None if it has no folder."""
    folder = ROOT / "changes" if version is None else ROOT / "changes" / version
    if not folder.is_dir():
        return None
    return f"# Trunkline {version or '(unreleased)'}\n\n" + "\n".join(entries(folder)) + "\n"


def main() -> int:
    """Write the page, or compare it, or print notes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date instead of writing it")
    parser.add_argument(
        "--notes", metavar="VERSION", nargs="?", const="", help="print the notes of a release, or the next"
    )
    options = parser.parse_args()
    if options.notes is not None:
        notes = release_notes(options.notes or None)
        print(notes or f"there is no folder changes/{options.notes}", end="" if notes else "\n")
        return 0 if notes else 1
    page, text = ROOT / "CHANGELOG.md", changelog(ROOT / "changes")
    if options.check:
        if page.exists() and page.read_text("utf-8") == text:
            return 0
        print("out of date: CHANGELOG.md; run `make docs`")
        return 1
    page.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
