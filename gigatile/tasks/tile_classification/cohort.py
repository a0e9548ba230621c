"""The sample sheet of slides, the table of their states, and the folder of their records."""

from gigatile.cohort.samples import SLIDE_SHEET, Sample
from gigatile.cohort.sheet import SheetLayout
from gigatile.cohort.state_tables import SLIDE_TABLE as STATE_TABLE

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]

# The folder of the records in the results.
RECORDS = "tiles"


def sheet() -> SheetLayout[Sample]:
    """Return the layout of the sample sheet."""
    return SLIDE_SHEET
