"""The records of cases."""

from pathlib import Path

from gigatile.records.shard_layout import volume_or_tile_id

__all__ = ["record_id"]


def record_id(path: Path) -> str:
    """Return the id of the case that a file of records belongs to, from its first record."""
    return volume_or_tile_id(path)
