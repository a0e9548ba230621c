"""Read a sample sheet of any kind, for commands that need ids, patients and splits only."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gigatile.cohort.cases import case_sheet
from gigatile.cohort.samples import SLIDE_SHEET
from gigatile.cohort.sheet import Member, SheetLayout
from gigatile.cohort.sheet_reading import columns_of, read_sheet

LAYOUTS: Sequence[SheetLayout] = (SLIDE_SHEET, case_sheet())


def read_members(
    sheet: Path,
    labelled: bool = True,
    may_be_missing: Callable[[Path], bool] = lambda path: False,
    layouts: Sequence[SheetLayout] = LAYOUTS,
) -> Sequence[Member]:
    """Read and check a sheet; the column of ids decides what its rows are.

    Args:
        sheet: the file.
        labelled: False for a sheet of new slides or cases.
        may_be_missing: returns for a missing file whether the workflow will create it.
        layouts: the kinds of sheets. If no id column is found, the first one is expected.

    Raises:
        UserError: lists all faults of the sheet.
    """
    header = columns_of(sheet)
    layout = next((layout for layout in layouts if layout.unit in header), layouts[0])
    return read_sheet(sheet, layout, labelled, may_be_missing)
