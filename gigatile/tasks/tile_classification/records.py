"""The records of slides."""

from pathlib import Path

from gigatile.records.shard_layout import lay_out_shards, slide_or_case_of

__all__ = ["LAY_OUT", "record_id"]

LAY_OUT = lay_out_shards


def record_id(path: Path) -> str:
    """Return the id of the slide that a file of records belongs to, from its first record."""
    return slide_or_case_of(path)
