"""The sample sheet of cases, and their records."""

from pathlib import Path

from gigatile.cohort.cases import Case, case_sheet
from gigatile.cohort.sheet import SheetLayout
from gigatile.cohort.state_tables import CASE_TABLE as STATE_TABLE
from gigatile.records.shard_layout import volume_or_tile_id

__all__ = ["RECORDS", "STATE_TABLE", "record_id", "sheet"]

# The folder of the records in the results.
RECORDS = "volumes"


def sheet() -> SheetLayout[Case]:
    """Return the layout of the sample sheet, without its columns of files."""
    return case_sheet()


def record_id(path: Path) -> str:
    """Return the id of the case that a file of records belongs to, from its first record."""
    return volume_or_tile_id(path)
