"""Read a sample sheet of any task, for commands that need ids, patients and splits only."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gigatile.cohort.sheet import Member
from gigatile.cohort.sheet_reading import columns_of, read_sheet
from gigatile.tasks import TASKS, task_part


def read_any_sheet(
    sheet: Path,
    labelled: bool = True,
    may_be_missing: Callable[[Path], bool] = lambda path: False,
) -> Sequence[Member]:
    """Read and check a sheet; its column of ids identifies the task.

    Args:
        sheet: the sheet.
        labelled: False for a sheet of new slides or cases.
        may_be_missing: returns for a missing file whether the workflow will create it.

    Raises:
        UserError: lists all faults of the sheet.
    """
    header = columns_of(sheet)
    layouts = [task_part(name, "cohort").sheet() for name in TASKS]
    layout = next((layout for layout in layouts if layout.unit in header), layouts[0])
    return read_sheet(sheet, layout, labelled, may_be_missing)
