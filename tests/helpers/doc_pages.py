"""Reads commands, YAML and printed errors out of README.md and the pages of docs/."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = ("anemoi-training", "etesian")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, line and text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Page and line, for the names of tests."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return README.md and the pages of docs/."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(language: str) -> list[Block]:
    """Return the blocks of a language, page by page."""
    found = []
    for page in pages():
        text = page.read_text()
        name = str(page.relative_to(REPOSITORY))
        for match in FENCE.finditer(text):
            if match[1] == language:
                found.append(Block(name, text.count("\n", 0, match.start()) + 1, language, match[2]))
    return found


def commands() -> list[tuple[str, list[str]]]:
    """Return (place, arguments after the program's name) of each documented command of the package."""
    found = []
    for block in blocks("bash"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] in PROGRAMS:
                found.append((f"{block.page}: {' '.join(words[1:])}", words[1:]))
    return found


def file_name(block: Block) -> str | None:
    """Return the name of the file that a block shows, or None; a header of Hydra stands before it."""
    first = next(line for line in block.text.splitlines() if not line.startswith("# @package"))
    return first[2:] if re.fullmatch(r"# [\w/]+\.(yaml|py)", first) else None


def named_files(page: str) -> dict[str, str]:
    """Return the files that a page shows: YAML and Python blocks whose first line is a comment with a file's name."""
    shown = [(block, file_name(block)) for language in ("yaml", "python") for block in blocks(language)]
    return {name: block.text for block, name in shown if block.page == page and name is not None}


def fragments() -> list[Block]:
    """Return the YAML blocks that are parts of a config, without a name."""
    return [block for block in blocks("yaml") if file_name(block) is None]


def shown_errors() -> list[tuple[str, list[str], str]]:
    """Return (place, arguments, output) of each command that is shown with what it prints."""
    found = []
    for block in blocks("console"):
        first, _, output = block.text.partition("\n")
        words = shlex.split(first.removeprefix("$ "))
        assert words[0] in PROGRAMS, block.name
        found.append((block.name, words[1:], output))
    return found
