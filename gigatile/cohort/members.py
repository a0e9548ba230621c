"""A sheet of whatever it is, for those who only ask whose it is."""

from collections.abc import Callable
from pathlib import Path

from gigatile.cohort.cases import Case, read_cases
from gigatile.cohort.samples import Sample, read_samples
from gigatile.cohort.sheet import columns_of


def read_members(
    sheet: Path, labelled: bool = True, made_later: Callable[[Path], bool] = lambda path: False
) -> list[Sample] | list[Case]:
    """Read and check a sheet of cases, if it has a column `case`, or of slides.

    Args:
        sheet: tab-separated text.
        labelled: False for a sheet of new ones.
        made_later: tells for a missing file whether the workflow will make it.

    Raises:
        UserError: everything that is wrong with the sheet.
    """
    header = columns_of(sheet)
    if "case" in header and "slide" not in header:
        return read_cases(sheet, (), labelled, made_later)
    return read_samples(sheet, labelled, made_later)
