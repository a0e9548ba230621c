"""Parse README.md and docs/*.md: code blocks and their marks, tables and links.

HTML comments right above a block, which readers don't see, say where and how it is run:

    <!-- in: checkout -->        in the project's own folder, not in a copy
    <!-- file: mine.yaml -->     the block is this file; it is written into the page's work folder
    <!-- excerpt: NAME -->       the block shows a part of this file
    <!-- setup: NAME -->         first create files that a reader has and a clone lacks
    <!-- planned -->             Snakemake only plans it (-n): it needs a cluster or hours
    <!-- fails -->               it ends with an error
    <!-- not run: REASON -->     neither; test_docs.py knows each of these

A block of text shows the output of the block above it; … matches anything.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from clones import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_COMMENT = re.compile(r"<!-- ([a-z ]+?)(?:: (.+?))? -->")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the comments above it by their names."""

    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    parsed, marks, begun = [], {}, None
    for number, line in enumerate((ROOT / page).read_text().split("\n"), 1):
        if begun is None and line.startswith("```"):
            begun = (number, line[3:].strip(), [])
        elif begun is not None and line == "```":
            start, language, lines = begun
            parsed.append(Block(page, start, language, "\n".join(lines) + "\n", marks))
            marks, begun = {}, None
        elif begun is not None:
            begun[2].append(line)
        else:
            # Spaces before a fence would hide its block from these tests.
            assert not re.match(r"\s*(```|~~~)", line), f"{page}:{number}: an indented fence"
            comment = _COMMENT.fullmatch(line.strip())
            if comment:
                marks[comment[1]] = comment[2] or ""
            elif line.strip():
                assert not marks, f"{page}:{number}: a mark that stands above no block"
    assert begun is None and not marks, f"{page}: a block without an end, or a mark without a block"
    return parsed


def in_checkout(page: str, wanted: bool) -> list[Block]:
    """Return the blocks that are run in the project's own folder, or all others."""
    chosen, here = [], False
    for block in blocks(page):
        # Text belongs to the command above it.
        if block.language != "text":
            here = block.marks.get("in") == "checkout"
        if here == wanted:
            chosen.append(block)
    return chosen


def prose(page: str) -> str:
    """Return a page without its blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def tables(page: str) -> list[list[list[str]]]:
    """Return the tables of a page: rows of cells, the heading first."""
    all_tables, rows = [], []
    for line in [*prose(page).split("\n"), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("| ").split("|")])
        elif rows:
            all_tables.append([rows[0], *rows[2:]])
            rows = []
    return all_tables


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the table whose first heading is `heading`."""
    (rows,) = [candidate[1:] for candidate in tables(page) if candidate[0][0] == heading]
    assert rows
    return rows


def code(cell: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def links(page: str) -> list[str]:
    """Return where the links and pictures of a page lead."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page)))


def anchors(page: Path) -> set[str]:
    """Return what a link into a page can name after #, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.+)$", prose(str(page.relative_to(ROOT))), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {text.replace(" ", "-") for text in plain}


def pattern(shown: str, **placeholders: str) -> re.Pattern[str]:
    """Return a regex for a text in which … and each <placeholder> match anything."""
    escaped = re.escape(shown).replace("…", r".+?")
    for name, stands_for in placeholders.items():
        escaped = escaped.replace(f"<{name}>", stands_for)
    return re.compile(escaped)
