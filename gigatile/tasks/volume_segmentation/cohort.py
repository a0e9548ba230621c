"""The sample sheet of cases, the table of their states, and the folder of their records."""

from gigatile.cohort.cases import Case, case_sheet
from gigatile.cohort.sheet import SheetLayout
from gigatile.cohort.state_tables import CASE_TABLE as STATE_TABLE

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]

# The folder of the records in the results.
RECORDS = "volumes"


def sheet() -> SheetLayout[Case]:
    """Return the layout of the sample sheet, without its columns of files."""
    return case_sheet()
