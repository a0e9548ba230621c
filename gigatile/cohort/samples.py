"""Sample sheets of slides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from gigatile.cohort.mpp import parse_mpp
from gigatile.cohort.sheet import Row, SheetLayout
from gigatile.cohort.sheet_reading import read_sheet
from gigatile.errors import UserError


@dataclass(frozen=True)
class Sample:
    """A slide.

    Attributes:
        slide: its id, unique in the sheet and safe as a file name.
        patient: the patient; all slides of a patient are in the same split.
        label: the class, or the outcome as text; empty for a new slide.
        path: the file.
        mpp: micrometres per pixel of level 0, if the sheet overrides the file.
        split: the split that the sheet fixes, or empty.
        site: where the slide comes from, or empty.
        row: the line number in the sheet; the header is line 1.
        cells: all cells of the row, by column.
        stratum: see `sheet.stratum_of`; None: the label.
    """

    unit: ClassVar[str] = "slide"
    slide: str
    patient: str
    label: str
    path: Path
    mpp: float | None
    split: str
    site: str
    row: int
    cells: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    stratum: str | None = None

    @property
    def id(self) -> str:
        """The slide's id."""
        return self.slide

    @property
    def files(self) -> tuple[Path, ...]:
        """The slide's file; empty if the row has none."""
        return (self.path,) if self.path.name else ()


def build_sample(
    row: Row, label: str | None = None, stratum: str | None = None
) -> tuple[Sample, list[str]]:
    """Return the slide of a row, and the faults of the column `mpp`.

    Args:
        row: of the sheet.
        label: see `Sample`; None: that of the row.
        stratum: see `Sample`.
    """
    mpp, faults = None, []
    if text := row.cells.get("mpp"):
        try:
            mpp = parse_mpp(text)
        except UserError as error:
            faults.append(str(error))
    path = row.files.get("path", Path())
    sample = Sample(
        row.id,
        row.patient,
        row.label if label is None else label,
        path,
        mpp,
        row.split,
        row.site,
        row.number,
        row.cells,
        stratum,
    )
    return sample, faults


SLIDE_SHEET = SheetLayout(
    unit="slide", build=build_sample, files=("path",), label=True, files_in_stores=True
)


def read_samples(
    sheet: Path,
    labelled: bool = True,
    may_be_missing: Callable[[Path], bool] = lambda path: False,
    look: bool = True,
) -> list[Sample]:
    """Read and check a sheet of slides; see `read_sheet`."""
    return read_sheet(Path(sheet), SLIDE_SHEET, labelled, may_be_missing, look)
