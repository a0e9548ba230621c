"""The records of cases."""

from pathlib import Path

from gigatile.records.shard_layout import slide_or_case_of

__all__ = ["record_id"]


def record_id(path: Path) -> str:
    """Return the id of the case that a file of records belongs to, from its first record."""
    return slide_or_case_of(path)
