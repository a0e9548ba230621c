"""Which paths the workflow can pass on: to Snakemake, to a shell and to commands."""

import os
import unicodedata
from pathlib import Path

# Control characters, halves of characters, separators of lines and paragraphs.
_BREAKING = ("Cc", "Cs", "Zl", "Zp")


def fault_of_path(path: str | Path) -> str | None:
    """Return why a path cannot be used in the workflow, and what to do; None if it can.

    Snakemake takes braces for the name of a wildcard, as in `{slide}.svs`, and a command takes a
    path that begins with `-` for an option.
    """
    text = os.path.normpath(path)
    for character in text:
        if character in "{}":
            return (
                f"holds {character!r}, with which Snakemake marks wildcards; rename the file or "
                "folder, or make a link to it without braces"
            )
        if unicodedata.category(character) in _BREAKING:
            return (
                f"holds {character!r}, which breaks lines; rename the file or folder, or make a "
                "link to it"
            )
    if text.startswith("-"):
        return "begins with '-', as options do; move it into a folder, or rename it"
    return None
