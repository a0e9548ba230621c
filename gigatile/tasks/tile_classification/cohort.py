"""The sample sheet of slides, and their records."""

from pathlib import Path

from gigatile.cohort.samples import SLIDE_SHEET, Sample
from gigatile.cohort.sheet import SheetLayout
from gigatile.cohort.state_tables import SLIDE_TABLE as STATE_TABLE
from gigatile.records.shard_layout import volume_or_tile_id

__all__ = ["RECORDS", "STATE_TABLE", "record_id", "sheet"]

# The folder of the records in the results.
RECORDS = "tiles"


def sheet() -> SheetLayout[Sample]:
    """Return the layout of the sample sheet."""
    return SLIDE_SHEET


def record_id(path: Path) -> str:
    """Return the id of the slide that a file of records belongs to, from its first record."""
    return volume_or_tile_id(path)
