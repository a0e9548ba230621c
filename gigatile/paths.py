"""Check that a path can be passed to Snakemake, to a shell and to commands."""

import os
import unicodedata
from pathlib import Path

# Unicode categories: control characters, surrogates, line and paragraph separators.
_BREAKING = ("Cc", "Cs", "Zl", "Zp")


def fault_of_path(path: str | Path) -> str | None:
    """Return why a path cannot be used in the workflow, and what to do; None if it can.

    Snakemake reads braces as a wildcard, as in `{slide}.svs`. A command reads a path that starts
    with `-` as an option.
    """
    text = os.path.normpath(path)
    for character in text:
        if character in "{}":
            return (
                f"contains {character!r}, which marks wildcards in Snakemake; rename the file or "
                "folder, or create a link without braces"
            )
        if unicodedata.category(character) in _BREAKING:
            return (
                f"contains {character!r}, which breaks lines; rename the file or folder, or create "
                "a link"
            )
    if text.startswith("-"):
        return "starts with '-', like an option; move it into a folder, or rename it"
    return None
