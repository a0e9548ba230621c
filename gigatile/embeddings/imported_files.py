"""Files of embeddings that a sheet names in place of slides."""

from pathlib import Path

ENDING = ".h5"


def has_embeddings(path: Path) -> bool:
    """Return whether a path in a sheet is that of a file of embeddings."""
    return path.suffix.lower() == ENDING
